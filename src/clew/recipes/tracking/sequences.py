"""Sequences for TrackNET: prefixes of tracks as a forest, and the hits that may come next.

A prefix is its parent and one more hit. Prefixes with the same first hits share their ancestors, so a recurrent network
computes every state once, level by level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from clew import Ragged, Table
from clew.recipes.tracking.geometry import Bools, Detector, Floats, HitCoordinates, Ints, Positive, hit_coordinates
from clew.recipes.tracking.hitgraph import EdgeCuts, linked_pairs
from clew.recipes.tracking.pairs import PairCut, pairs_around
from clew.recipes.tracking.truth import TrueTracks


class SeedCuts(EdgeCuts):
    """Cuts on the first two hits of a candidate, and the search window for its next hits."""

    turn_cut: Positive = 0.006
    z0_cut: Positive = 120.0
    reach_phi: Positive = 0.1
    """Half width in phi, rad, of the window around the straight continuation. The network uses it as unit of length."""
    reach_z: Positive = 8.0
    """Half width in z, mm."""
    reach_x: Positive = 60.0
    """Half width in x, mm (planes)."""
    reach_y: Positive = 10.0
    """Half width in y, mm (planes)."""
    min_hits: Annotated[int, Field(ge=3)] = 3
    """Hits of the shortest track to find. A seed starts where at least this number of stations is left."""

    def reach(self, detector: Detector) -> tuple[float, float]:
        """Half widths of the window in u and v."""
        return (self.reach_x, self.reach_y) if detector.planar else (self.reach_phi, self.reach_z)


@dataclass
class _Forest:
    """Prefixes under construction: parent (a root is its own parent), last hit, level, and whether it is a true
    track."""

    parent: Ints
    hit: Ints
    level: Ints
    true: Bools


def build(events: Table, detector: Detector, cuts: SeedCuts) -> Table:
    """Add the prefixes and steps of every event to its hits.

    The new columns are `place` (hits, 3): w, u, v in mm and rad; `prefix` (prefixes): the last hit; `parent`: the
    prefix without that hit (a root is its own parent); `level`: the number of hits before the last one; `step` (steps):
    a
    prefix; `step_hit`: a hit that may come next; `step_label`: 1 if the hit is the next one on the track of the prefix.
    Prefixes are all seeds, and all beginnings of true tracks. Steps are the hits in the window around the straight
    continuation, and the true next hit even if it is outside the window.

    Raises:
        DataError: A hit has an unknown station, or an event has more seeds or steps than `cuts.max_per_event`.
    """
    hits, truth = hit_coordinates(events, detector), TrueTracks.of(events)
    forest = _forest(hits, truth, detector, cuts)
    prefix, hit = _steps(hits, forest, detector, cuts)
    label = forest.true[prefix] & truth.follows(forest.hit[prefix], hit)
    prefix, hit, label = _with_missing(truth, forest, prefix, hit, label)
    return _columns(events, hits, forest, prefix, hit, label)


def _forest(hits: HitCoordinates, truth: TrueTracks, detector: Detector, cuts: SeedCuts) -> _Forest:
    """Roots, seeds, and the longer prefixes of true tracks."""
    last = len(detector.positions) - cuts.min_hits
    links = [link for link in detector.links() if link[0] <= last]
    seeds = np.concatenate(
        [linked_pairs(hits, link, detector, cuts, "seeds") for link in links] or [np.empty((0, 2), int)]
    )
    roots, root_of = np.unique(seeds[:, 0], return_inverse=True)
    count = len(roots)
    forest = _Forest(
        np.concatenate([np.arange(count), root_of]),
        np.concatenate([roots, seeds[:, 1]]),
        np.concatenate([np.zeros(count, int), np.ones(len(seeds), int)]),
        np.concatenate([truth.track[roots] >= 0, truth.follows(seeds[:, 0], seeds[:, 1])]),
    )
    begins = np.append(np.zeros(count, bool), truth.rank[seeds[:, 0]] == 0)
    growing_prefixes = np.flatnonzero((forest.level == 1) & forest.true & begins)
    following = _next_hits(truth)
    while len(growing_prefixes):
        after = following[forest.hit[growing_prefixes]]
        growing_prefixes, after = growing_prefixes[after >= 0], after[after >= 0]
        new_prefixes = len(forest.hit) + np.arange(len(growing_prefixes))
        level = np.full(
            len(growing_prefixes), int(forest.level[growing_prefixes[0]]) + 1 if len(growing_prefixes) else 0
        )
        forest = _Forest(
            np.concatenate([forest.parent, growing_prefixes]),
            np.concatenate([forest.hit, after]),
            np.concatenate([forest.level, level]),
            np.concatenate([forest.true, np.ones(len(growing_prefixes), bool)]),
        )
        growing_prefixes = new_prefixes
    return forest


def _next_hits(truth: TrueTracks) -> Ints:
    """The next hit on the track of each hit, -1 for none. If a track has two hits on a station, the first one."""
    assigned = np.flatnonzero(truth.track >= 0)
    order = assigned[np.lexsort((assigned, truth.rank[assigned], truth.track[assigned]))]
    after = np.full(len(truth.track), -1, dtype=np.int64)
    key = truth.track[order] * (int(truth.rank.max(initial=0)) + 2) + truth.rank[order]
    place = np.searchsorted(key, key + 1)
    exists = (place < len(key)) & (key[np.minimum(place, len(key) - 1)] == key + 1) if len(key) else place < 0
    after[order[exists]] = order[place[exists]]
    return after


def straight(hits: HitCoordinates, a: Ints, b: Ints, w: Floats) -> tuple[Floats, Floats]:
    """u and v at depth w on the line through hits a and b."""
    share = (w - hits.w[b]) / hits.delta_w(a, b)
    return hits.u[b] + hits.delta_u(a, b) * share, hits.v[b] + (hits.v[b] - hits.v[a]) * share


def _steps(hits: HitCoordinates, forest: _Forest, detector: Detector, cuts: SeedCuts) -> tuple[Ints, Ints]:
    """(prefix, hit) for every prefix of two or more hits and every hit in the window around its continuation."""
    extendable = np.flatnonzero(forest.level >= 1)
    reach_u, reach_v = cuts.reach(detector)
    names = ("seeds.reach_x", "seeds.reach_y") if detector.planar else ("seeds.reach_phi", "seeds.reach_z")
    steps: list[tuple[Ints, Ints]] = []
    for inner, station in detector.links():
        rows = extendable[hits.station[forest.hit[extendable]] == inner]
        a, b = forest.hit[forest.parent[rows]], forest.hit[rows]
        centre, _ = straight(hits, a, b, np.full(len(rows), detector.positions[station]))

        def near(row: Ints, hit: Ints, a: Ints = a, b: Ints = b) -> Bools:
            _, v = straight(hits, a[row], b[row], hits.w[hit])
            return np.asarray(np.abs(hits.v[hit] - v) < reach_v)

        centre = (centre + np.pi) % hits.period - np.pi if hits.period else centre
        cut = PairCut(reach_u, near, names, cuts.max_per_event, "seeds.max_per_event", "next hits")
        row, hit = pairs_around(hits, hits.event[b], centre, station, cut)
        steps.append((rows[row], hit))
    return np.concatenate([part[0] for part in steps]), np.concatenate([part[1] for part in steps])


def _with_missing(
    truth: TrueTracks, forest: _Forest, prefix: Ints, hit: Ints, label: Bools
) -> tuple[Ints, Ints, Bools]:
    """The steps together with the true next hits outside the window: the network must learn where they are."""
    after = _next_hits(truth)[forest.hit]
    target = np.flatnonzero(forest.true & (forest.level >= 1) & (after >= 0))
    has_true_step = np.zeros(len(forest.hit), dtype=bool)
    has_true_step[prefix[label]] = True
    target = target[~has_true_step[target]]
    true_label = np.ones(len(target), dtype=bool)
    return np.append(prefix, target), np.append(hit, after[target]), np.append(label, true_label)


def _columns(events: Table, hits: HitCoordinates, forest: _Forest, prefix: Ints, hit: Ints, label: Bools) -> Table:
    x, count = events.ragged("x"), len(events)
    order = np.argsort(hits.event[forest.hit], kind="stable")
    new_number = np.empty(len(order), dtype=np.int64)
    new_number[order] = np.arange(len(order))
    of_prefix = hits.event[forest.hit[order]]
    prefixes = Ragged.from_lengths(
        (forest.hit[order] - x.offsets[of_prefix]).astype(np.int32), np.bincount(of_prefix, minlength=count)
    )
    chosen = np.lexsort((hit, new_number[prefix]))
    prefix, hit, label = new_number[prefix[chosen]], hit[chosen], label[chosen]
    of_step = hits.event[hit]
    steps = Ragged.from_lengths(
        (prefix - prefixes.offsets[of_step]).astype(np.int32), np.bincount(of_step, minlength=count)
    )
    parent = new_number[forest.parent[order]] - prefixes.offsets[of_prefix]
    return events.join(
        {
            "place": x.share(np.stack([hits.w, hits.u, hits.v], axis=1).astype(np.float32)),
            "prefix": prefixes,
            "parent": prefixes.share(parent.astype(np.int32)),
            "level": prefixes.share(forest.level[order].astype(np.int8)),
            "step": steps,
            "step_hit": steps.share((hit - x.offsets[of_step]).astype(np.int32)),
            "step_label": steps.share(label.astype(np.uint8)),
        },
        index_of={"prefix": "x", "parent": "prefix", "step": "prefix", "step_hit": "x"},
    )
