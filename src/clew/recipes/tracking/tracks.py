"""Tracks from edge scores or candidates: greedy by score, or connected components. All events at once."""

from __future__ import annotations

import numpy as np

from clew import Ragged, Table
from clew.recipes.tracking.geometry import Floats, Ints
from clew.recipes.tracking.settings import HitGraphBuildingConfig
from clew.recipes.tracking.truth import renumber


def from_edges(samples: Table, scores: Floats, threshold: float, method: str = "walk") -> Ints:
    """Tracks from the edges of segment graphs.

    An edge above the threshold is a chain of three hits. `walk`: chains are accepted in order of falling score; a hit
    can be the first of one chain, the middle of one, and the last of one. Chains that share a segment form one track.
    If two
    tracks still share a hit, the chain with the best score decides. `components`: a track is a connected component.

    Args:
        samples: Segment graphs.
        scores: Score of each edge.
        threshold: Edges with a lower score are ignored.
        method: `walk` or `components`.

    Returns:
        The track of each hit, numbered through the table; -1 for none.
    """
    edges, chains = _chains(samples)
    hits = len(samples.ragged("x").values)
    taken = np.flatnonzero(scores > threshold)
    if method == "components":
        return connected_components(np.concatenate([chains[taken, :2], chains[taken, 1:]]), hits)
    slots = chains[taken] + hits * np.arange(3)
    taken = taken[greedy_choice(slots.ravel(), np.repeat(np.arange(len(taken)), 3), scores[taken], 3 * hits)]
    label = _path_labels(edges[taken], len(samples.ragged("node").values))
    found_tracks = np.full(hits, -1, dtype=np.int64)
    found_tracks[chains[taken].ravel()] = np.repeat(label[edges[taken, 0]], 3)
    return renumber(found_tracks)


def number_in_events(hits: Ragged, found_tracks: Ints) -> Ragged:
    """Track numbers from 0 in each event, from numbers through the table; -1 stays. `hits` is any column of hits."""
    assigned, event = found_tracks >= 0, hits.events
    base = int(found_tracks.max(initial=0)) + 1
    unique_keys, place = np.unique(event[assigned] * base + found_tracks[assigned], return_inverse=True)
    first = np.searchsorted(unique_keys // base, np.arange(len(hits)))
    local = np.full(len(found_tracks), -1, dtype=np.int64)
    local[assigned] = place - first[event[assigned]]
    return hits.share(local)


def number_in_table(found_tracks: Ragged) -> Ints:
    """Track numbers through the table, from numbers in each event. The inverse of `number_in_events`."""
    last_number = np.full(len(found_tracks), -1, dtype=np.int64)
    np.maximum.at(last_number, found_tracks.events, found_tracks.values)
    first = np.cumsum(last_number + 1) - (last_number + 1)
    return np.where(found_tracks.values >= 0, found_tracks.values + first[found_tracks.events], -1)


def from_links(
    links: Ints, scores: Floats, hits: int, config: HitGraphBuildingConfig, same: Ints | None = None
) -> Ints:
    """Tracks from the edges of hit graphs.

    `walk`: links are accepted in order of falling score; a hit has at most one inner and one outer link; tracks are the
    resulting paths. `components`: a track is a connected component. Tracks with fewer than `config.min_hits` hits are
    removed.

    Args:
        links: Inner and outer hit of each edge (links, 2).
        scores: Score of each edge.
        hits: Number of hits.
        config: Threshold, method and smallest number of hits.
        same: A number for each hit; hits with the same number are treated as one.

    Returns:
        The track of each hit; -1 for none.
    """
    same = np.arange(hits) if same is None else renumber(same)
    taken = np.flatnonzero(scores > config.threshold)
    links, scores = same[links[taken]], scores[taken]
    if config.method == "walk":
        slots = links + hits * np.arange(2)
        links = links[greedy_choice(slots.ravel(), np.repeat(np.arange(len(links)), 2), scores, 2 * hits)]
        found_tracks = np.where(np.bincount(links.ravel(), minlength=hits) > 0, _path_labels(links, hits), -1)[same]
    else:
        found_tracks = connected_components(links, hits)[same]
    size = np.bincount(found_tracks[found_tracks >= 0], minlength=hits + 1)
    return renumber(np.where(size[found_tracks] >= config.min_hits, found_tracks, -1))


def from_candidates(members: Ints, owner: Ints, scores: Floats, hits: int) -> Ints:
    """Tracks from candidates (hit numbers, and the candidate of each), accepted in order of falling score."""
    selected = np.zeros(len(scores), dtype=bool)
    selected[greedy_choice(members, owner, scores, hits)] = True
    found_tracks = np.full(hits, -1, dtype=np.int64)
    found_tracks[members[selected[owner]]] = owner[selected[owner]]
    return renumber(found_tracks)


def greedy_choice(slots: Ints, owner: Ints, scores: Floats, count: int) -> Ints:
    """Greedy choice in order of falling score, where each of `count` slots can be taken once.

    It takes a small number of rounds over arrays: an owner that is best at all its slots wins, and an owner that needs
    a slot which is taken is excluded.

    Args:
        slots: Slots that owners need.
        owner: The owner of each entry of `slots`.
        scores: Score of each owner.
        count: Number of slots.

    Returns:
        The chosen owners, the best last.
    """
    order = np.argsort(-scores, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    place, winners = rank[owner], []
    while len(slots):
        best = np.full(count, len(order), dtype=np.int64)
        np.minimum.at(best, slots, place)
        beaten = np.zeros(len(order), dtype=bool)
        beaten[place[best[slots] != place]] = True
        wins = ~beaten[place]
        winners.append(np.unique(place[wins]))
        occupied = np.zeros(count, dtype=bool)
        occupied[slots[wins]] = True
        excluded = np.zeros(len(order), dtype=bool)
        excluded[place[occupied[slots]]] = True
        remaining = ~excluded[place]
        slots, place = slots[remaining], place[remaining]
    chosen = np.sort(np.concatenate(winners))[::-1] if winners else np.empty(0, dtype=np.int64)
    return np.asarray(order[chosen])


def connected_components(links: Ints, hits: int) -> Ints:
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
    """Edges as pairs of segments and as triples of hits, both numbered through the table."""
    edge, node_hits = samples.ragged("edge"), samples.ragged("node_hits")
    edges = edge.values.astype(np.int64) + samples.ragged("node").offsets[edge.events][:, None]
    hits = node_hits.values.astype(np.int64) + samples.ragged("x").offsets[node_hits.events][:, None]
    return edges, np.concatenate([hits[edges[:, 0]], hits[edges[:, 1], 1:]], axis=1)


def _path_labels(links: Ints, items: int) -> Ints:
    """A label per item, the same along a path of links. Each item has at most one link on each side."""
    before = np.arange(items)
    before[links[:, 1]] = links[:, 0]
    while not np.array_equal(before[before], before):
        before = before[before]
    return before
