"""Two hits of one track on one station, where modules overlap: they are merged before tracks are built.

The method `walk` uses one hit per station. It would lose the second hit, or build two broken tracks.
"""

from __future__ import annotations

import numpy as np

from clew.recipes.tracking.geometry import Bools, Floats, HitCoordinates, Ints
from clew.recipes.tracking.hitgraph import EdgeCuts
from clew.recipes.tracking.tracks import connected_components

STRONG = 0.5
"""Smallest score of a link that is used."""
ACROSS, ALONG = 0.2, 10.0
"""mm by which positions measured in two modules may differ, in addition to what the cuts on links allow."""


def merge_overlaps(hits: HitCoordinates, links: Ints, scores: Floats, cuts: EdgeCuts) -> Ints:
    """A number for each hit; hits of one station that belong to one track get the same number. For cylinders only.

    Two hits are merged if links with a score above STRONG join them to the same hit, and if a track that passes the
    cuts on links can cross both.

    Args:
        hits: All hits.
        links: Inner and outer hit of each link (links, 2).
        scores: Score of each link.
        cuts: The cuts on links.
    """
    strong = links[scores > STRONG]
    pairs = np.concatenate([_neighbours(hits, strong), _neighbours(hits, strong[:, ::-1])])
    group = connected_components(pairs[_close(hits, pairs[:, 0], pairs[:, 1], cuts)], len(hits.u))
    return np.where(group >= 0, group + len(group), np.arange(len(group)))


def _neighbours(hits: HitCoordinates, links: Ints) -> Ints:
    """Pairs of hits of one station, next to each other in u, that are linked to the same hit."""
    order = np.lexsort((hits.u[links[:, 1]], hits.station[links[:, 1]], links[:, 0]))
    first, second = links[order][:-1], links[order][1:]
    alike = (first[:, 0] == second[:, 0]) & (hits.station[first[:, 1]] == hits.station[second[:, 1]])
    return np.stack([first[alike, 1], second[alike, 1]], axis=1)


def _close(hits: HitCoordinates, a: Ints, b: Ints, cuts: EdgeCuts) -> Bools:
    r, dr = hits.w[a], np.abs(hits.w[b] - hits.w[a])
    across = np.abs(hits.delta_u(a, b)) * r
    along = np.abs(hits.v[b] - hits.v[a] - hits.v[a] / r * (hits.w[b] - hits.w[a]))
    return np.asarray((across < cuts.turn_cut * r * dr + ACROSS) & (along < cuts.z0_cut / r * dr + ALONG))
