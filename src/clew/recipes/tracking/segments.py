"""Segment graphs: nodes are pairs of hits on consecutive stations, edges join pairs that share the middle hit.

Everything here works on all events of a table at once; an event's number is part of every sort key.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Ragged, Section, Table
from clew.errors import DataError
from clew.recipes.tracking.geometry import Bools, Detector, Floats, Ints, Places, Positive, places
from clew.recipes.tracking.pairs import Cut, between, blocks, expand
from clew.recipes.tracking.truth import Truth

TURN_GAIN = 1000.0
"""mm per rad: true tracks turn by a few mrad a mm."""
BEND_GAIN = 5.0
"""The same for planes, where u is a length."""
BEAM_SCALE = 50.0
"""mm: a few times the length of the beam spot."""
SLOPE_GAIN = 2.0


class Segments(Section):
    """Cuts of the graph."""

    phi_cut: Annotated[float, Field(gt=0, le=3.14159)] = 0.2205
    """rad, between two consecutive hits; at most half a turn."""
    z_cut: Positive = 135.52
    """mm, between two consecutive hits."""
    features: Literal["directions", "positions"] = "directions"
    """What the network sees of a segment: where it points (phi, dphi/dr, z at the beam line, dz/dr), or, as
    published, where its hits are (phi and z of both). The same information; the first is learned in far fewer steps."""
    bend_cut: Positive = 0.16
    """Distance between the (dr, dphi, dz) of two segments, each in units of half its range; for planes, which are not
    evenly spaced, between their (dx/dz, dy/dz)."""
    x_cut: Positive = 0.7
    """Largest |dx/dz| between planes."""
    y_cut: Positive = 0.4
    """Largest |dy/dz| between planes."""
    most: Annotated[int, Field(ge=1)] = 2_000_000
    """Segments between two stations, or edges, that one event may have: an error beyond."""


def build(events: Table, detector: Detector, cuts: Segments) -> Table:
    """The graph of every event, beside its hits.

    Adds `node` (segments, 5): what the network sees of each, by `cuts.features`; `node_hits` (segments, 2): the hits;
    `edge` (edges, 2): the segments; `label` (edges): 1 where all three hits are of one track, one after the other.
    A segment over a gap (`detector.gaps`) may be as much longer as it crosses stations.

    Raises:
        DataError: a station that the detector does not have, or more segments or edges than `cuts.most`.
    """
    hits = places(events, detector)
    pairs = np.concatenate([_pairs(hits, link, detector, cuts) for link in detector.links()])
    pairs = pairs[np.argsort(hits.event[pairs[:, 0]], kind="stable")]
    edges = _edges(hits, pairs, detector, cuts)
    edges = edges[np.argsort(hits.event[pairs[edges[:, 0], 0]], kind="stable")]
    features = _FEATURES[cuts.features](hits, pairs, detector)
    label = _labels(events, pairs, edges, detector)
    return _columns(events, hits, pairs, edges, features.astype(np.float32), label)


def _pairs(hits: Places, link: tuple[int, int], detector: Detector, cuts: Segments) -> Ints:
    """Hit numbers (inner, outer) of all pairs between two stations that pass the cuts."""
    u_name, v_name = ("x_cut", "y_cut") if detector.planar else ("phi_cut", "z_cut")
    span = detector.positions[link[1]] - detector.positions[link[0]] if detector.planar else link[1] - link[0]
    v_cut = span * getattr(cuts, v_name)

    def near(a: Ints, b: Ints) -> Bools:
        return np.asarray(np.abs(hits.v[b] - hits.v[a]) < v_cut)

    window = span * getattr(cuts, u_name)
    window = window if detector.planar else min(window, 3.14159)
    names = (f"segments.{u_name}", f"segments.{v_name}")
    return between(hits, link, Cut(window, near, names, cuts.most, "segments.most", "segments"))


def _edges(hits: Places, pairs: Ints, detector: Detector, cuts: Segments) -> Ints:
    """Segment numbers (inner, outer) of all neighbours that share the middle hit and bend little."""
    order = np.argsort(pairs[:, 0], kind="stable")
    begins = pairs[order, 0]
    first, last = np.searchsorted(begins, pairs[:, 1], "left"), np.searchsorted(begins, pairs[:, 1], "right")
    step = _steps(hits, pairs, detector)
    kept, found = [], np.zeros(len(hits.number), dtype=np.int64)
    for rows in blocks(last - first):
        row, place = expand(first[rows], last[rows])
        edges = np.stack([row + rows.start, order[place]], axis=1)
        bend = step[edges[:, 1]] - step[edges[:, 0]]
        edges = edges[np.sqrt((bend**2).sum(axis=1)) < cuts.bend_cut]
        found += np.bincount(hits.event[pairs[edges[:, 0], 0]], minlength=len(found))
        if found.max() > cuts.most:
            raise DataError(
                f"event {hits.number[found.argmax()]}: {int((hits.event == found.argmax()).sum()):,} hits give more "
                f"than {cuts.most:,} edges; tighten segments.bend_cut, or raise segments.most"
            )
        kept.append(edges)
    return np.concatenate(kept) if kept else np.empty((0, 2), dtype=np.int64)


def _steps(hits: Places, pairs: Ints, detector: Detector) -> Floats:
    """(dr, dphi, dz) of each segment for one station crossed, scaled to the ranges of the coordinates; or slopes."""
    a, b = pairs[:, 0], pairs[:, 1]
    if detector.planar:
        dw = hits.deeper(a, b)
        return np.stack([hits.across(a, b) / dw, (hits.v[b] - hits.v[a]) / dw], axis=1)
    w, u, v = detector.scales
    steps = np.stack([(hits.w[b] - hits.w[a]) / w, hits.across(a, b) / u, (hits.v[b] - hits.v[a]) / v], axis=1)
    return steps / (hits.station[b] - hits.station[a])[:, None] if detector.gaps == "bridge" else steps


def _positions(hits: Places, pairs: Ints, detector: Detector) -> Floats:
    """phi and z of both hits, scaled, and the station; phi runs on over the seam."""
    a, b = pairs[:, 0], pairs[:, 1]
    _, u_max, v_max = detector.scales
    phi = hits.u[a] / u_max
    outer = phi + hits.across(a, b) / u_max
    z = hits.v / v_max
    return np.stack([phi, outer, z[a], z[b], (hits.station[a] + 1) / len(detector.positions)], axis=1)


def _directions(hits: Places, pairs: Ints, detector: Detector) -> Floats:
    """phi, how it turns, where the segment meets the beam line, its slope in r-z, and the station.

    Turn and slope are the same for both segments of a true track, to the resolution: their scales are chosen so
    that the network need not learn large weights to see a small difference.
    """
    a, b = pairs[:, 0], pairs[:, 1]
    dw = hits.deeper(a, b)
    turn = hits.across(a, b) / dw
    slope = (hits.v[b] - hits.v[a]) / dw
    beam = hits.v[a] - slope * hits.w[a]
    gain = BEND_GAIN if detector.planar else TURN_GAIN
    scaled = [hits.u[a] / detector.scales[1], turn * gain, beam / BEAM_SCALE, slope * SLOPE_GAIN]
    return np.stack([*scaled, (hits.station[a] + 1) / len(detector.positions)], axis=1)


_FEATURES = {"positions": _positions, "directions": _directions}


def _labels(events: Table, pairs: Ints, edges: Ints, detector: Detector) -> Bools:
    """Which edges join three hits of one track, one after the other."""
    track = events.ragged("track").values
    a, b, c = pairs[edges[:, 0], 0], pairs[edges[:, 0], 1], pairs[edges[:, 1], 1]
    if detector.gaps == "bridge":
        truth = Truth.of(events)
        return truth.follows(a, b) & truth.follows(b, c)
    return np.asarray((track[a] == track[b]) & (track[b] == track[c]) & (track[a] != -1))


def _columns(
    events: Table, hits: Places, pairs: Ints, edges: Ints, features: NDArray[np.float32], label: Bools
) -> Table:
    count = len(events)
    node_event = hits.event[pairs[:, 0]]
    nodes = Ragged.from_lengths(features, np.bincount(node_event, minlength=count))
    edge_event = node_event[edges[:, 0]]
    joined = edges - nodes.offsets[edge_event][:, None]
    edge = Ragged.from_lengths(joined.astype(np.int32), np.bincount(edge_event, minlength=count))
    node_hits = (pairs - events.ragged("x").offsets[node_event][:, None]).astype(np.int32)
    return events.join(
        {
            "node": nodes,
            "node_hits": nodes.share(node_hits),
            "edge": edge,
            "label": edge.share(label.astype(np.uint8)),
        },
        index_of={"node_hits": "x", "edge": "node"},
    )
