"""Segment graphs: nodes are pairs of hits on consecutive stations, edges join pairs that share the middle hit.

All events of a table are processed at once; the event is part of every sort key.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Ragged, Section, Table
from clew.errors import DataError
from clew.recipes.tracking.geometry import Bools, Detector, Floats, HitCoordinates, Ints, Positive, hit_coordinates
from clew.recipes.tracking.pairs import PairCut, expand_ranges, pairs_between, row_blocks
from clew.recipes.tracking.truth import TrueTracks

TURN_GAIN = 1000.0
"""mm per rad: true tracks turn by a few mrad per mm."""
BEND_GAIN = 5.0
"""The same factor for planes, where u is a length."""
BEAM_SCALE = 50.0
"""mm, a few times the length of the beam spot."""
SLOPE_GAIN = 2.0


class SegmentCuts(Section):
    """Cuts and features of the segment graph."""

    phi_cut: Annotated[float, Field(gt=0, le=3.14159)] = 0.2205
    """Largest difference in phi between two consecutive hits, rad."""
    z_cut: Positive = 135.52
    """Largest difference in z between two consecutive hits, mm."""
    features: Literal["directions", "positions"] = "directions"
    """Features of a segment: its direction (phi, dphi/dr, z at the beam line, dz/dr), or, as published, the positions
    of its hits (phi and z of both). Both hold the same information; directions are learned in far fewer steps."""
    bend_cut: Positive = 0.16
    """Largest distance between the (dr, dphi, dz) of two segments, each in units of half its range; for planes, which
    are not evenly spaced, between their (dx/dz, dy/dz)."""
    x_cut: Positive = 0.7
    """Largest |dx/dz| between planes."""
    y_cut: Positive = 0.4
    """Largest |dy/dz| between planes."""
    max_per_event: Annotated[int, Field(ge=1)] = 2_000_000
    """Largest number of segments between two stations, and of edges, in one event. More are an error."""


def build(events: Table, detector: Detector, cuts: SegmentCuts) -> Table:
    """Add the graph of every event to its hits.

    The new columns are `node` (segments, 5): the features (`cuts.features`); `node_hits` (segments, 2): the two hits;
    `edge` (edges, 2): the two segments; `label` (edges): 1 if the three hits follow each other on one track. The cuts
    on a segment that bridges stations (`detector.gaps`) grow with the number of stations it crosses.

    Raises:
        DataError: A hit has an unknown station, or an event has more segments or edges than `cuts.max_per_event`.
    """
    hits = hit_coordinates(events, detector)
    pairs = np.concatenate([_pairs(hits, link, detector, cuts) for link in detector.links()])
    pairs = pairs[np.argsort(hits.event[pairs[:, 0]], kind="stable")]
    edges = _edges(hits, pairs, detector, cuts)
    edges = edges[np.argsort(hits.event[pairs[edges[:, 0], 0]], kind="stable")]
    features = _FEATURES[cuts.features](hits, pairs, detector)
    label = _labels(events, pairs, edges, detector)
    return _columns(events, hits, pairs, edges, features.astype(np.float32), label)


def _pairs(hits: HitCoordinates, link: tuple[int, int], detector: Detector, cuts: SegmentCuts) -> Ints:
    """Hit numbers (inner, outer) of all pairs between two stations that pass the cuts."""
    u_name, v_name = ("x_cut", "y_cut") if detector.planar else ("phi_cut", "z_cut")
    span = detector.positions[link[1]] - detector.positions[link[0]] if detector.planar else link[1] - link[0]
    v_cut = span * getattr(cuts, v_name)

    def near(a: Ints, b: Ints) -> Bools:
        return np.asarray(np.abs(hits.v[b] - hits.v[a]) < v_cut)

    window = span * getattr(cuts, u_name)
    window = window if detector.planar else min(window, 3.14159)
    names = (f"segments.{u_name}", f"segments.{v_name}")
    return pairs_between(
        hits, link, PairCut(window, near, names, cuts.max_per_event, "segments.max_per_event", "segments")
    )


def _edges(hits: HitCoordinates, pairs: Ints, detector: Detector, cuts: SegmentCuts) -> Ints:
    """Segment numbers (inner, outer) of all pairs of segments that share the middle hit and pass `bend_cut`."""
    order = np.argsort(pairs[:, 0], kind="stable")
    first_hit = pairs[order, 0]
    first, last = np.searchsorted(first_hit, pairs[:, 1], "left"), np.searchsorted(first_hit, pairs[:, 1], "right")
    step = _steps(hits, pairs, detector)
    edge_blocks, edges_in_event = [], np.zeros(len(hits.event_number), dtype=np.int64)
    for rows in row_blocks(last - first):
        row, place = expand_ranges(first[rows], last[rows])
        edges = np.stack([row + rows.start, order[place]], axis=1)
        bend = step[edges[:, 1]] - step[edges[:, 0]]
        edges = edges[np.sqrt((bend**2).sum(axis=1)) < cuts.bend_cut]
        edges_in_event += np.bincount(hits.event[pairs[edges[:, 0], 0]], minlength=len(edges_in_event))
        if edges_in_event.max() > cuts.max_per_event:
            worst = edges_in_event.argmax()
            raise DataError(
                f"event {hits.event_number[worst]}: {int((hits.event == worst).sum()):,} hits give more "
                f"than {cuts.max_per_event:,} edges; tighten segments.bend_cut, or raise segments.max_per_event"
            )
        edge_blocks.append(edges)
    return np.concatenate(edge_blocks) if edge_blocks else np.empty((0, 2), dtype=np.int64)


def _steps(hits: HitCoordinates, pairs: Ints, detector: Detector) -> Floats:
    """(dr, dphi, dz) of each segment per station crossed, scaled to the coordinate ranges; slopes for planes."""
    a, b = pairs[:, 0], pairs[:, 1]
    if detector.planar:
        dw = hits.delta_w(a, b)
        return np.stack([hits.delta_u(a, b) / dw, (hits.v[b] - hits.v[a]) / dw], axis=1)
    w, u, v = detector.scales
    steps = np.stack([(hits.w[b] - hits.w[a]) / w, hits.delta_u(a, b) / u, (hits.v[b] - hits.v[a]) / v], axis=1)
    return steps / (hits.station[b] - hits.station[a])[:, None] if detector.gaps == "bridge" else steps


def _positions(hits: HitCoordinates, pairs: Ints, detector: Detector) -> Floats:
    """phi and z of both hits, scaled, and the station. phi of the outer hit may exceed pi: it does not jump."""
    a, b = pairs[:, 0], pairs[:, 1]
    _, u_max, v_max = detector.scales
    phi = hits.u[a] / u_max
    outer = phi + hits.delta_u(a, b) / u_max
    z = hits.v / v_max
    return np.stack([phi, outer, z[a], z[b], (hits.station[a] + 1) / len(detector.positions)], axis=1)


def _directions(hits: HitCoordinates, pairs: Ints, detector: Detector) -> Floats:
    """phi, dphi/dr, z at the beam line, dz/dr, and the station.

    dphi/dr and dz/dr are equal for both segments of a true track, up to the resolution. Their scales are chosen so
    that the network can see a small difference without large weights.
    """
    a, b = pairs[:, 0], pairs[:, 1]
    dw = hits.delta_w(a, b)
    turn = hits.delta_u(a, b) / dw
    slope = (hits.v[b] - hits.v[a]) / dw
    beam = hits.v[a] - slope * hits.w[a]
    gain = BEND_GAIN if detector.planar else TURN_GAIN
    scaled = [hits.u[a] / detector.scales[1], turn * gain, beam / BEAM_SCALE, slope * SLOPE_GAIN]
    return np.stack([*scaled, (hits.station[a] + 1) / len(detector.positions)], axis=1)


_FEATURES = {"positions": _positions, "directions": _directions}


def _labels(events: Table, pairs: Ints, edges: Ints, detector: Detector) -> Bools:
    """Which edges join three hits that follow each other on one track."""
    track = events.ragged("track").values
    a, b, c = pairs[edges[:, 0], 0], pairs[edges[:, 0], 1], pairs[edges[:, 1], 1]
    if detector.gaps == "bridge":
        truth = TrueTracks.of(events)
        return truth.follows(a, b) & truth.follows(b, c)
    return np.asarray((track[a] == track[b]) & (track[b] == track[c]) & (track[a] != -1))


def _columns(
    events: Table, hits: HitCoordinates, pairs: Ints, edges: Ints, features: NDArray[np.float32], label: Bools
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
