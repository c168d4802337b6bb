"""Tracks from scored edges, and comparing them with the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clew import Ragged, Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def find(samples: Table, scores: Floats, threshold: float) -> Ints:
    """The number of the track each hit was given, counted through the whole table; -1 for none.

    Edges above the threshold are chains of three hits. The best-scored take their hits first: a hit can be the
    first of one chain, the middle of one and the last of one. Chains that overlap in a segment are one track; where
    two tracks still share a hit it is given to the one whose chain there scores best.
    """
    edges, chains = _chains(samples)
    taken = np.flatnonzero(scores > threshold)
    taken = taken[_compete(chains[taken], scores[taken], len(samples.ragged("x").values))]
    label = _join(edges[taken], len(samples.ragged("node").values))
    found = np.full(len(samples.ragged("x").values), -1, dtype=np.int64)
    found[chains[taken].ravel()] = np.repeat(label[edges[taken, 0]], 3)
    return _renumber(found)


def in_event(samples: Table, found: Ints) -> Ints:
    """Tracks counted from 0 in each event, from those counted through the table; -1 stays."""
    event = samples.ragged("x").events
    of_track, _ = _groups(found, event)
    first = np.searchsorted(of_track, np.arange(len(samples)))  # `find` counts event by event
    return np.where(found >= 0, found - first[event], -1)


def in_table(found: Ragged) -> Ints:
    """The other way round."""
    most = np.full(len(found), -1, dtype=np.int64)
    np.maximum.at(most, found.events, found.values)
    first = np.cumsum(most + 1) - (most + 1)
    return np.where(found.values >= 0, found.values + first[found.events], -1)


@dataclass(frozen=True)
class Match:
    """True tracks and found tracks side by side. A match is the exact set of hits."""

    true_event: Ints
    true_found: Bools
    found_event: Ints
    found_true: Bools
    true_of_hit: Ints
    """Which true track each hit is of, counted through the table; -1 for noise."""


def match(samples: Table, found: Ints) -> Match:
    """Compare by exact hit set."""
    hit_event, track = samples.ragged("track").events, samples.ragged("track").values
    lowest_id, highest_id = int(track.min(initial=0)), int(track.max(initial=0))
    key = hit_event * (highest_id - lowest_id + 1) + (track - lowest_id)
    true = _renumber(np.where(track == -1, -1, key))
    true_event, true_size = _groups(true, hit_event)
    found_event, found_size = _groups(found, hit_event)
    # a found track matches when its hits are all of one true track and there are as many as that track has
    lowest = np.full(len(found_size), np.iinfo(np.int64).max)
    highest = np.full(len(found_size), -1)
    used = found >= 0
    np.minimum.at(lowest, found[used], true[used])
    np.maximum.at(highest, found[used], true[used])
    pure = (lowest == highest) & (lowest >= 0)
    good = pure & (found_size == np.append(true_size, 0)[np.where(pure, lowest, -1)])
    true_found = np.zeros(len(true_size), dtype=bool)
    true_found[lowest[good]] = True
    return Match(true_event, true_found, found_event, good, true)


def kinematics(samples: Table, track: Ints, field: float) -> tuple[Floats, Floats]:
    """Transverse momentum (GeV) and polar angle (degrees) of tracks, from their hits.

    pT is that of the circle through the beam line that fits the hits best; the angle that of the line in r-z.
    The text layouts carry no momenta, so both samples are measured alike.
    """
    used = track >= 0
    x, y, z = (samples.ragged(name).values[used].astype(np.float64) for name in "xyz")
    r, count = np.hypot(x, y), int(track.max(initial=-1)) + 1

    def total(values: Floats) -> Floats:
        return np.bincount(track[used], weights=values, minlength=count).astype(np.float64)

    # turned to lie along the first axis: for a straight track the sums below would cancel to rounding noise
    along = np.arctan2(total(y), total(x))[track[used]]
    x, y = x * np.cos(along) + y * np.sin(along), y * np.cos(along) - x * np.sin(along)
    sxx, sxy, syy, sx, sy = total(x * x), total(x * y), total(y * y), total(x * r * r), total(y * r * r)
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = sxx * syy - sxy**2
        a, b = (sx * syy - sy * sxy) / determinant / 2, (sy * sxx - sx * sxy) / determinant / 2
        radius = np.nan_to_num(np.hypot(a, b), nan=1e9, posinf=1e9)
        n = total(np.ones_like(r))
        slope = (n * total(r * z) - total(r) * total(z)) / (n * total(r * r) - total(r) ** 2)
    return 0.299792458 * field * radius / 1000, np.degrees(np.arctan2(1.0, slope))


def _chains(samples: Table) -> tuple[Ints, Ints]:
    """Edges as segment numbers and as the three hits they join, both counted through the whole table."""
    edge, node_hits = samples.ragged("edge"), samples.ragged("node_hits")
    edges = edge.values.astype(np.int64) + samples.ragged("node").offsets[edge.events][:, None]
    hits = node_hits.values.astype(np.int64) + samples.ragged("x").offsets[node_hits.events][:, None]
    return edges, np.concatenate([hits[edges[:, 0]], hits[edges[:, 1], 1:]], axis=1)


def _compete(chains: Ints, scores: Floats, hits: int) -> Ints:
    """The chains that a greedy choice by falling score would keep, the best last, in a few rounds over all of them."""
    order = np.argsort(-scores, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    left, kept = np.arange(len(chains)), []
    while len(left):
        best = np.full((3, hits), len(chains), dtype=np.int64)
        for role in range(3):
            np.minimum.at(best[role], chains[left, role], rank[left])
        wins = (best[np.arange(3), chains[left]] == rank[left][:, None]).all(axis=1)
        kept.append(left[wins])
        gone = np.zeros((3, hits), dtype=bool)
        for role in range(3):
            gone[role, chains[left[wins], role]] = True
        left = left[~gone[np.arange(3), chains[left]].any(axis=1)]
    chosen = np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)
    return np.asarray(chosen[np.argsort(-rank[chosen])])


def _join(edges: Ints, segments: int) -> Ints:
    """A label a segment, the same along a path of edges; each segment has at most one edge in and one out."""
    label = np.arange(segments)
    before = np.arange(segments)
    before[edges[:, 1]] = edges[:, 0]
    while not np.array_equal(before[before], before):
        before = before[before]
    return label[before]


def _groups(number: Ints, event: Ints) -> tuple[Ints, Ints]:
    """Event and size of each numbered group of hits."""
    used = number >= 0
    count = int(number.max(initial=-1)) + 1
    of = np.zeros(count, dtype=np.int64)
    of[number[used]] = event[used]
    return of, np.bincount(number[used], minlength=count)


def _renumber(number: Ints) -> Ints:
    """The same groups counted 0, 1, 2, ...; -1 stays."""
    new = np.full(len(number), -1, dtype=np.int64)
    used = number >= 0
    new[used] = np.unique(number[used], return_inverse=True)[1]
    return new
