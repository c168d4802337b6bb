"""Segment graphs: nodes are pairs of hits on consecutive stations, edges join pairs that share the middle hit.

Everything here works on all events of a table at once; an event's number is part of every sort key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Ragged, Section, Table
from clew.errors import DataError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Positive = Annotated[float, Field(gt=0)]

_TURN = 2 * np.pi
TURN_GAIN = 1000.0
"""mm per rad: true tracks turn by a few mrad a mm."""
BEAM_SCALE = 50.0
"""mm: a few times the length of the beam spot."""
SLOPE_GAIN = 2.0


class Detector(Section):
    """Cylindrical stations, and the scale of each coordinate in the network's features."""

    radii: tuple[Positive, ...] = (81.555, 126.055, 166.555)
    """mm, from the inside out; the station numbers of the hits count through them."""
    r_range: tuple[float, float] = (80.0, 167.0)
    """mm, scaled to [-1, 1]."""
    phi_max: Positive = 3.15
    """rad, scaled to 1."""
    z_max: Positive = 423.5
    """mm, scaled to 1."""
    field: Positive = 1.0
    """T, along z; only for the transverse momentum shown in plots."""


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
    """Distance between the (dr, dphi, dz) of two segments, each in units of half its range."""


@dataclass(frozen=True)
class _Hits:
    event: Ints
    station: Ints
    r: Floats
    phi: Floats
    z: Floats


def build(events: Table, detector: Detector, cuts: Segments) -> Table:
    """The graph of every event, beside its hits.

    Adds `node` (segments, 5): what the network sees of each, by `cuts.features`; `node_hits` (segments, 2): the hits;
    `edge` (edges, 2): the segments; `label` (edges): 1 where all three hits are of one track.

    Raises:
        DataError: a station that the detector does not have.
    """
    hits = _hits(events, detector)
    pairs = np.concatenate([_pairs(hits, station, cuts) for station in range(len(detector.radii) - 1)])
    pairs = pairs[np.argsort(hits.event[pairs[:, 0]], kind="stable")]
    edges = _edges(hits, pairs, detector, cuts)
    edges = edges[np.argsort(hits.event[pairs[edges[:, 0], 0]], kind="stable")]
    features = _FEATURES[cuts.features](hits, pairs, detector)
    return _columns(events, hits, pairs, edges, features.astype(np.float32))


def wrap(angle: Floats) -> Floats:
    """An angle, or a difference of two, into [-pi, pi)."""
    return (angle + np.pi) % _TURN - np.pi


def _hits(events: Table, detector: Detector) -> _Hits:
    x, y, z = (events.ragged(name).values.astype(np.float64) for name in "xyz")
    station = events.ragged("station").values.astype(np.int64)
    if station.size and not (station.min() >= 0 and station.max() < len(detector.radii)):
        wrong = int(station[(station < 0) | (station >= len(detector.radii))][0])
        raise DataError(f"a hit has station {wrong}, the detector has 0 to {len(detector.radii) - 1}")
    return _Hits(events.ragged("x").events, station, np.hypot(x, y), np.arctan2(y, x), z)


def _pairs(hits: _Hits, station: int, cuts: Segments) -> Ints:
    """Hit numbers (inner, outer) of all pairs between a station and the next that pass the cuts.

    Outer hits are sorted by event and phi in one key, those near the seam also a turn away, so that the partners
    of an inner hit are one window of that order.
    """
    inner, outer = np.flatnonzero(hits.station == station), np.flatnonzero(hits.station == station + 1)
    low, high = outer[hits.phi[outer] < cuts.phi_cut - np.pi], outer[hits.phi[outer] > np.pi - cuts.phi_cut]
    outer = np.concatenate([outer, low, high])
    phi = hits.phi[outer]
    phi[len(phi) - len(low) - len(high) :] += np.repeat([_TURN, -_TURN], [len(low), len(high)])
    key = hits.event[outer] * 16.0 + phi
    order = np.argsort(key, kind="stable")  # ghosts share their phi: no other event may decide their order
    outer, key = outer[order], key[order]
    centre = hits.event[inner] * 16.0 + hits.phi[inner]
    first = np.searchsorted(key, centre - cuts.phi_cut, side="right")
    last = np.searchsorted(key, centre + cuts.phi_cut, side="left")
    rows, partners = _expand(first, last)
    pairs = np.stack([inner[rows], outer[partners]], axis=1)
    near = np.abs(hits.z[pairs[:, 1]] - hits.z[pairs[:, 0]]) < cuts.z_cut
    return np.asarray(pairs[near], dtype=np.int64)


def _edges(hits: _Hits, pairs: Ints, detector: Detector, cuts: Segments) -> Ints:
    """Segment numbers (inner, outer) of all neighbours that share the middle hit and bend little."""
    order = np.argsort(pairs[:, 0], kind="stable")
    begins = pairs[order, 0]
    first, last = np.searchsorted(begins, pairs[:, 1], "left"), np.searchsorted(begins, pairs[:, 1], "right")
    rows, places = _expand(first, last)
    edges = np.stack([rows, order[places]], axis=1)
    step = _steps(hits, pairs, detector)
    bend = step[edges[:, 1]] - step[edges[:, 0]]
    straight = np.sqrt((bend**2).sum(axis=1)) < cuts.bend_cut
    return np.asarray(edges[straight], dtype=np.int64)


def _steps(hits: _Hits, pairs: Ints, detector: Detector) -> Floats:
    """(dr, dphi, dz) of each segment, scaled to the ranges of the coordinates."""
    a, b = pairs[:, 0], pairs[:, 1]
    half_r = (detector.r_range[1] - detector.r_range[0]) / 2
    dphi = wrap(hits.phi[b] - hits.phi[a]) / detector.phi_max
    return np.stack([(hits.r[b] - hits.r[a]) / half_r, dphi, (hits.z[b] - hits.z[a]) / detector.z_max], axis=1)


def _positions(hits: _Hits, pairs: Ints, detector: Detector) -> Floats:
    """phi and z of both hits, scaled, and the station; phi runs on over the seam."""
    a, b = pairs[:, 0], pairs[:, 1]
    phi = hits.phi[a] / detector.phi_max
    outer = phi + wrap(hits.phi[b] - hits.phi[a]) / detector.phi_max
    z = hits.z / detector.z_max
    return np.stack([phi, outer, z[a], z[b], (hits.station[a] + 1) / len(detector.radii)], axis=1)


def _directions(hits: _Hits, pairs: Ints, detector: Detector) -> Floats:
    """phi, how it turns, where the segment meets the beam line, its slope in r-z, and the station.

    Turn and slope are the same for both segments of a true track, to the resolution: their scales are chosen so
    that the network need not learn large weights to see a small difference.
    """
    a, b = pairs[:, 0], pairs[:, 1]
    dr = hits.r[b] - hits.r[a]
    turn = wrap(hits.phi[b] - hits.phi[a]) / dr
    slope = (hits.z[b] - hits.z[a]) / dr
    beam = hits.z[a] - slope * hits.r[a]
    scaled = [hits.phi[a] / detector.phi_max, turn * TURN_GAIN, beam / BEAM_SCALE, slope * SLOPE_GAIN]
    return np.stack([*scaled, (hits.station[a] + 1) / len(detector.radii)], axis=1)


_FEATURES = {"positions": _positions, "directions": _directions}


def _columns(events: Table, hits: _Hits, pairs: Ints, edges: Ints, features: NDArray[np.float32]) -> Table:
    a, b = pairs[:, 0], pairs[:, 1]
    count = len(events)
    hit_start = events.ragged("x").offsets
    node_event = hits.event[a]
    nodes = Ragged.from_lengths(features, np.bincount(node_event, minlength=count))
    edge_event = node_event[edges[:, 0]]
    joined = edges - nodes.offsets[edge_event][:, None]
    edge = Ragged.from_lengths(joined.astype(np.int32), np.bincount(edge_event, minlength=count))
    track = events.ragged("track").values
    label = (track[a[edges[:, 0]]] == track[b[edges[:, 0]]]) & (track[b[edges[:, 0]]] == track[b[edges[:, 1]]])
    label &= track[a[edges[:, 0]]] != -1
    node_hits = (pairs - hit_start[node_event][:, None]).astype(np.int32)
    return events.join(
        {
            "node": nodes,
            "node_hits": nodes.share(node_hits),
            "edge": edge,
            "label": edge.share(label.astype(np.uint8)),
        },
        index_of={"node_hits": "x", "edge": "node"},
    )


def _expand(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Every (row, place) with first[row] <= place < last[row]."""
    counts = np.maximum(last - first, 0)
    rows = np.repeat(np.arange(len(first)), counts)
    ends = np.cumsum(counts)
    places = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts) + np.repeat(first, counts)
    return rows, places
