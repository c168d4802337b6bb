"""Tracks from scored edges and candidates: a walk along the best, or connected components. All events at once."""

from __future__ import annotations

import numpy as np

from clew import Ragged, Table
from clew.recipes.tracking.geometry import Floats, Ints
from clew.recipes.tracking.settings import HitBuilding
from clew.recipes.tracking.truth import renumber


def find(samples: Table, scores: Floats, threshold: float, method: str = "walk") -> Ints:
    """From edges of segment graphs: the track each hit was given, counted through the table; -1 for none.

    Edges above the threshold are chains of three hits. `walk`: the best-scored take their hits first: a hit can be
    the first of one chain, the middle of one and the last of one. Chains that overlap in a segment are one track; where
    two tracks still share a hit it is given to the one whose chain there scores best. `components`: hits that chains
    join in any way are one track.
    """
    edges, chains = _chains(samples)
    hits = len(samples.ragged("x").values)
    taken = np.flatnonzero(scores > threshold)
    if method == "components":
        return components(np.concatenate([chains[taken, :2], chains[taken, 1:]]), hits)
    slots = chains[taken] + hits * np.arange(3)
    taken = taken[compete(slots.ravel(), np.repeat(np.arange(len(taken)), 3), scores[taken], 3 * hits)]
    label = _follow(edges[taken], len(samples.ragged("node").values))
    found = np.full(hits, -1, dtype=np.int64)
    found[chains[taken].ravel()] = np.repeat(label[edges[taken, 0]], 3)
    return renumber(found)


def in_event(like: Ragged, found: Ints) -> Ragged:
    """Tracks counted from 0 in each event, beside `like`, from those counted through the table; -1 stays."""
    used, event = found >= 0, like.events
    many = int(found.max(initial=0)) + 1
    each, place = np.unique(event[used] * many + found[used], return_inverse=True)
    first = np.searchsorted(each // many, np.arange(len(like)))
    local = np.full(len(found), -1, dtype=np.int64)
    local[used] = place - first[event[used]]
    return like.share(local)


def in_table(found: Ragged) -> Ints:
    """The other way round."""
    most = np.full(len(found), -1, dtype=np.int64)
    np.maximum.at(most, found.events, found.values)
    first = np.cumsum(most + 1) - (most + 1)
    return np.where(found.values >= 0, found.values + first[found.events], -1)


def from_links(links: Ints, scores: Floats, hits: int, chosen: HitBuilding, same: Ints | None = None) -> Ints:
    """From edges of hit graphs (links, 2), inner and outer hit: the track each hit was given; -1 for none.

    `walk`: the best-scored link first, a hit has at most one inwards and one outwards, tracks are the paths that
    remain. `components`: hits that links join in any way are one track. Tracks of fewer than `shortest` hits go.
    Hits with the same number in `same` are one to both.
    """
    same = np.arange(hits) if same is None else renumber(same)
    taken = np.flatnonzero(scores > chosen.threshold)
    links, scores = same[links[taken]], scores[taken]
    if chosen.method == "walk":
        slots = links + hits * np.arange(2)
        links = links[compete(slots.ravel(), np.repeat(np.arange(len(links)), 2), scores, 2 * hits)]
        found = np.where(np.bincount(links.ravel(), minlength=hits) > 0, _follow(links, hits), -1)[same]
    else:
        found = components(links, hits)[same]
    size = np.bincount(found[found >= 0], minlength=hits + 1)
    return renumber(np.where(size[found] >= chosen.shortest, found, -1))


def from_candidates(members: Ints, owner: Ints, scores: Floats, hits: int) -> Ints:
    """From whole candidates (hit numbers, and the candidate each belongs to): the best take their hits first."""
    kept = np.zeros(len(scores), dtype=bool)
    kept[compete(members, owner, scores, hits)] = True
    found = np.full(hits, -1, dtype=np.int64)
    found[members[kept[owner]]] = owner[kept[owner]]
    return renumber(found)


def compete(slots: Ints, owner: Ints, scores: Floats, count: int) -> Ints:
    """Those that a greedy choice by falling score keeps where each of `count` slots is given once, the best last.

    In a few rounds over all of them: whoever is best at all its slots wins them, whoever lost a slot is out.
    """
    order = np.argsort(-scores, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    place, kept = rank[owner], []
    while len(slots):
        best = np.full(count, len(order), dtype=np.int64)
        np.minimum.at(best, slots, place)
        beaten = np.zeros(len(order), dtype=bool)
        beaten[place[best[slots] != place]] = True
        wins = ~beaten[place]
        kept.append(np.unique(place[wins]))
        gone = np.zeros(count, dtype=bool)
        gone[slots[wins]] = True
        out = np.zeros(len(order), dtype=bool)
        out[place[gone[slots]]] = True
        left = ~out[place]
        slots, place = slots[left], place[left]
    chosen = np.sort(np.concatenate(kept))[::-1] if kept else np.empty(0, dtype=np.int64)
    return np.asarray(order[chosen])


def components(links: Ints, hits: int) -> Ints:
    """Connected components: a number for each hit with a link, -1 for the others."""
    label = np.arange(hits)
    while True:
        a, b = label[links[:, 0]], label[links[:, 1]]
        lower = label.copy()
        np.minimum.at(lower, np.maximum(a, b), np.minimum(a, b))
        while not np.array_equal(lower[lower], lower):
            lower = lower[lower]
        if np.array_equal(lower, label):
            break
        label = lower
    linked = np.bincount(links.ravel(), minlength=hits) > 0
    return renumber(np.where(linked, label, -1))


def _chains(samples: Table) -> tuple[Ints, Ints]:
    """Edges as segment numbers and as the three hits they join, both counted through the whole table."""
    edge, node_hits = samples.ragged("edge"), samples.ragged("node_hits")
    edges = edge.values.astype(np.int64) + samples.ragged("node").offsets[edge.events][:, None]
    hits = node_hits.values.astype(np.int64) + samples.ragged("x").offsets[node_hits.events][:, None]
    return edges, np.concatenate([hits[edges[:, 0]], hits[edges[:, 1], 1:]], axis=1)


def _follow(links: Ints, items: int) -> Ints:
    """A label an item, the same along a path of links; each item has at most one link in and one out."""
    before = np.arange(items)
    before[links[:, 1]] = links[:, 0]
    while not np.array_equal(before[before], before):
        before = before[before]
    return before
