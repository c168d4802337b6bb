"""Sequences for TrackNET: prefixes of tracks as a forest, and the hits that might come next.

Prefixes that begin alike share their beginning: each is its parent and one more hit, so a recurrent network computes
every state once, level by level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from clew import Ragged, Table
from clew.recipes.tracking.geometry import Bools, Detector, Floats, Ints, Places, Positive, places
from clew.recipes.tracking.hitgraph import Edges, linked
from clew.recipes.tracking.pairs import Cut, around
from clew.recipes.tracking.truth import Truth


class Seeds(Edges):
    """Cuts on the first two hits of a candidate, and where the next hits are looked for."""

    turn_cut: Positive = 0.006
    z0_cut: Positive = 120.0
    reach_phi: Positive = 0.1
    """rad: half the window around the straight continuation, and the network's unit of length."""
    reach_z: Positive = 8.0
    """mm, likewise."""
    reach_x: Positive = 60.0
    """mm, likewise for planes."""
    reach_y: Positive = 10.0
    """mm, likewise for planes."""
    shortest: Annotated[int, Field(ge=3)] = 3
    """Hits of the shortest track looked for: seeds begin where that many stations follow."""

    def reach(self, detector: Detector) -> tuple[float, float]:
        """Half the window in u and v."""
        return (self.reach_x, self.reach_y) if detector.planar else (self.reach_phi, self.reach_z)


@dataclass
class _Forest:
    """Prefixes under construction: the parent (a root is its own), the newest hit, and the one before it."""

    parent: Ints
    hit: Ints
    level: Ints
    true: Bools


def build(events: Table, detector: Detector, cuts: Seeds) -> Table:
    """The prefixes and next steps of every event, beside its hits.

    Adds `place` (hits, 3): w, u, v in mm and rad; `prefix` (prefixes): its newest hit, `parent`: the prefix before (a
    root its own), `level`: how many hits came before; `step` (steps): the prefix, `step_hit`: a hit that may come next,
    `step_label`: 1 where prefix and hit are one track, one after the other. Prefixes are all seeds, and true tracks to
    their end; steps are the hits around their straight continuation, and always the true next hit.

    Raises:
        DataError: a station that the detector does not have, or more seeds or steps than `cuts.most`.
    """
    hits, truth = places(events, detector), Truth.of(events)
    forest = _forest(hits, truth, detector, cuts)
    prefix, hit = _steps(hits, forest, detector, cuts)
    label = forest.true[prefix] & truth.follows(forest.hit[prefix], hit)
    prefix, hit, label = _with_missing(truth, forest, prefix, hit, label)
    return _columns(events, hits, forest, prefix, hit, label)


def _forest(hits: Places, truth: Truth, detector: Detector, cuts: Seeds) -> _Forest:
    """Roots, seeds, and the prefixes of true tracks that grow from true seeds."""
    last = len(detector.positions) - cuts.shortest
    links = [link for link in detector.links() if link[0] <= last]
    seeds = np.concatenate([linked(hits, link, detector, cuts, "seeds") for link in links] or [np.empty((0, 2), int)])
    roots, root_of = np.unique(seeds[:, 0], return_inverse=True)
    count = len(roots)
    forest = _Forest(
        np.concatenate([np.arange(count), root_of]),
        np.concatenate([roots, seeds[:, 1]]),
        np.concatenate([np.zeros(count, int), np.ones(len(seeds), int)]),
        np.concatenate([truth.track[roots] >= 0, truth.follows(seeds[:, 0], seeds[:, 1])]),
    )
    begins = np.append(np.zeros(count, bool), truth.rank[seeds[:, 0]] == 0)
    growing = np.flatnonzero((forest.level == 1) & forest.true & begins)
    following = _next_hits(truth)
    while len(growing):
        after = following[forest.hit[growing]]
        growing, after = growing[after >= 0], after[after >= 0]
        fresh = len(forest.hit) + np.arange(len(growing))
        level = np.full(len(growing), int(forest.level[growing[0]]) + 1 if len(growing) else 0)
        forest = _Forest(
            np.concatenate([forest.parent, growing]),
            np.concatenate([forest.hit, after]),
            np.concatenate([forest.level, level]),
            np.concatenate([forest.true, np.ones(len(growing), bool)]),
        )
        growing = fresh
    return forest


def _next_hits(truth: Truth) -> Ints:
    """The next hit of each hit's track, -1 for none; of two on one station, the one that stands first."""
    used = np.flatnonzero(truth.track >= 0)
    order = used[np.lexsort((used, truth.rank[used], truth.track[used]))]
    after = np.full(len(truth.track), -1, dtype=np.int64)
    key = truth.track[order] * (int(truth.rank.max(initial=0)) + 2) + truth.rank[order]
    place = np.searchsorted(key, key + 1)
    there = (place < len(key)) & (key[np.minimum(place, len(key) - 1)] == key + 1) if len(key) else place < 0
    after[order[there]] = order[place[there]]
    return after


def straight(hits: Places, a: Ints, b: Ints, w: Floats) -> tuple[Floats, Floats]:
    """u and v at depth w on the line through hits a and b."""
    share = (w - hits.w[b]) / hits.deeper(a, b)
    return hits.u[b] + hits.across(a, b) * share, hits.v[b] + (hits.v[b] - hits.v[a]) * share


def _steps(hits: Places, forest: _Forest, detector: Detector, cuts: Seeds) -> tuple[Ints, Ints]:
    """(prefix, hit) for every prefix of two or more hits and every hit around its continuation."""
    whole = np.flatnonzero(forest.level >= 1)
    reach_u, reach_v = cuts.reach(detector)
    names = ("seeds.reach_x", "seeds.reach_y") if detector.planar else ("seeds.reach_phi", "seeds.reach_z")
    found: list[tuple[Ints, Ints]] = []
    for inner, station in detector.links():
        rows = whole[hits.station[forest.hit[whole]] == inner]
        a, b = forest.hit[forest.parent[rows]], forest.hit[rows]
        centre, _ = straight(hits, a, b, np.full(len(rows), detector.positions[station]))

        def near(row: Ints, hit: Ints, a: Ints = a, b: Ints = b) -> Bools:
            _, v = straight(hits, a[row], b[row], hits.w[hit])
            return np.asarray(np.abs(hits.v[hit] - v) < reach_v)

        centre = (centre + np.pi) % hits.period - np.pi if hits.period else centre
        cut = Cut(reach_u, near, names, cuts.most, "seeds.most", "next hits")
        row, hit = around(hits, hits.event[b], centre, station, cut)
        found.append((rows[row], hit))
    return np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])


def _with_missing(truth: Truth, forest: _Forest, prefix: Ints, hit: Ints, label: Bools) -> tuple[Ints, Ints, Bools]:
    """The true next hits outside the window too: the network is to learn where they are."""
    after = _next_hits(truth)[forest.hit]
    target = np.flatnonzero(forest.true & (forest.level >= 1) & (after >= 0))
    seen = np.zeros(len(forest.hit), dtype=bool)
    seen[prefix[label]] = True
    target = target[~seen[target]]
    more = np.ones(len(target), dtype=bool)
    return np.append(prefix, target), np.append(hit, after[target]), np.append(label, more)


def _columns(events: Table, hits: Places, forest: _Forest, prefix: Ints, hit: Ints, label: Bools) -> Table:
    like, count = events.ragged("x"), len(events)
    order = np.argsort(hits.event[forest.hit], kind="stable")
    new = np.empty(len(order), dtype=np.int64)
    new[order] = np.arange(len(order))
    of_prefix = hits.event[forest.hit[order]]
    prefixes = Ragged.from_lengths(
        (forest.hit[order] - like.offsets[of_prefix]).astype(np.int32), np.bincount(of_prefix, minlength=count)
    )
    chosen = np.lexsort((hit, new[prefix]))
    prefix, hit, label = new[prefix[chosen]], hit[chosen], label[chosen]
    of_step = hits.event[hit]
    steps = Ragged.from_lengths(
        (prefix - prefixes.offsets[of_step]).astype(np.int32), np.bincount(of_step, minlength=count)
    )
    parent = new[forest.parent[order]] - prefixes.offsets[of_prefix]
    return events.join(
        {
            "place": like.share(np.stack([hits.w, hits.u, hits.v], axis=1).astype(np.float32)),
            "prefix": prefixes,
            "parent": prefixes.share(parent.astype(np.int32)),
            "level": prefixes.share(forest.level[order].astype(np.int8)),
            "step": steps,
            "step_hit": steps.share((hit - like.offsets[of_step]).astype(np.int32)),
            "step_label": steps.share(label.astype(np.uint8)),
        },
        index_of={"prefix": "x", "parent": "prefix", "step": "prefix", "step_hit": "x"},
    )
