"""Shared by the slow reference implementations of this folder: events as lists of hits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from clew import Ragged, Table
from clew.recipes.tracking.geometry import Detector
from clew.recipes.tracking.segments import SegmentCuts
from clew.recipes.tracking.simulate_bes3 import simulate

CYLINDERS = Detector()
FOUR = Detector(radii=(80.0, 110.0, 140.0, 170.0), r_range=(80.0, 170.0))


class Hit(NamedTuple):
    """One hit as a row."""

    x: float
    y: float
    z: float
    station: int
    track: int


def at(r: float, phi: float, z: float, station: int, track: int = -1) -> Hit:
    return Hit(r * math.cos(phi), r * math.sin(phi), z, station, track)


def to_table(events: Sequence[Sequence[Hit]], **columns: Any) -> Table:
    rows = np.array([hit for event in events for hit in event], dtype=np.float64).reshape(-1, 5)
    hits = Ragged.from_lengths(rows[:, 0], [len(event) for event in events])
    return Table(
        {
            "event": np.arange(len(events)),
            "x": hits,
            "y": hits.share(rows[:, 1]),
            "z": hits.share(rows[:, 2]),
            "station": hits.share(rows[:, 3].astype(np.int16)),
            "track": hits.share(rows[:, 4].astype(np.int64)),
            **columns,
        }
    )


def generated(count: int, seed: int) -> Table:
    """Simulated events."""
    hits = simulate(count, seed)
    x = Ragged.from_lengths(hits.x, np.bincount(hits.event, minlength=count))
    rest = {name: x.share(getattr(hits, name)) for name in ("y", "z", "station", "track")}
    return Table({"event": np.arange(count), "x": x, **rest})


def to_lists(table: Table) -> list[list[Hit]]:
    values = [table.ragged(name).values.tolist() for name in Hit._fields]
    rows = [Hit(x, y, z, station, track) for x, y, z, station, track in zip(*values, strict=True)]
    return [rows[first:last] for first, last in itertools.pairwise(table.ragged("x").offsets.tolist())]


@st.composite
def events(draw: st.DrawFn, detector: Detector = CYLINDERS, max_hits: int = 9) -> Table:
    """Up to three events of up to `max_hits` hits, close enough to link, half of them around the seam.

    Whole mm and mrad: no difference comes near enough to a cut for rounding to matter.
    """
    centre = draw(st.sampled_from([0.3, math.pi]))
    hit = st.builds(
        lambda station, phi, z, track: at(detector.radii[station], centre + 1e-3 * phi, z, station, track),
        st.integers(0, len(detector.radii) - 1),
        st.integers(-300, 300),
        st.integers(-120, 120),
        st.integers(-1, 2),
    )
    return to_table(draw(st.lists(st.lists(hit, max_size=max_hits), max_size=3)))


def pairs(hits: Sequence[Hit], cuts: SegmentCuts) -> set[tuple[int, int]]:
    """Segments by trying every pair of hits."""
    return {
        (i, j)
        for (i, a), (j, b) in itertools.permutations(enumerate(hits), 2)
        if b.station == a.station + 1 and abs(turn(a, b)) < cuts.phi_cut and abs(b.z - a.z) < cuts.z_cut
    }


def triples(hits: Sequence[Hit], detector: Detector, cuts: SegmentCuts) -> dict[tuple[int, int, int], int]:
    """Edges with their labels by trying every pair of segments."""
    segments = pairs(hits, cuts)
    return {
        (i, j, k): int(hits[i].track == hits[j].track == hits[k].track != -1)
        for (i, j), (middle, k) in itertools.product(segments, segments)
        if j == middle and _bend(hits[i], hits[j], hits[k], detector) < cuts.bend_cut
    }


def turn(a: Hit, b: Hit) -> float:
    return math.remainder(math.atan2(b.y, b.x) - math.atan2(a.y, a.x), math.tau)


def _bend(a: Hit, b: Hit, c: Hit, detector: Detector) -> float:
    half = (detector.r_range[1] - detector.r_range[0]) / 2

    def step(p: Hit, q: Hit) -> tuple[float, float, float]:
        dr = math.hypot(q.x, q.y) - math.hypot(p.x, p.y)
        return dr / half, turn(p, q) / detector.phi_max, (q.z - p.z) / detector.z_max

    return math.dist(step(a, b), step(b, c))


def built_pairs(graphs: Table, event: int) -> list[tuple[int, int]]:
    """The segments that clew built, as hits of the event."""
    return [(int(i), int(j)) for i, j in graphs.ragged("node_hits")[event]]


def built_triples(graphs: Table, event: int) -> list[tuple[tuple[int, int, int], int]]:
    """The edges that clew built, as hits of the event, and their labels."""
    nodes, labelled_triples = built_pairs(graphs, event), []
    for (a, b), label in zip(graphs.ragged("edge")[event], graphs.ragged("label")[event], strict=True):
        assert nodes[a][1] == nodes[b][0]
        labelled_triples.append(((*nodes[a], nodes[b][1]), int(label)))
    return labelled_triples
