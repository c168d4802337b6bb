"""Hits that one track leaves on one station, where two modules overlap: found beside each other, made one place.

A walk goes through one hit a station and would leave the other behind, or follow both as two broken tracks.
"""

from __future__ import annotations

import numpy as np

from clew.recipes.tracking.geometry import Bools, Floats, Ints, Places
from clew.recipes.tracking.hitgraph import Edges
from clew.recipes.tracking.tracks import components

STRONG = 0.5
"""Score of a link that counts."""
ACROSS, ALONG = 0.2, 10.0
"""mm by which positions measured in two modules may disagree, beside what the cuts on links allow."""


def merged(hits: Places, links: Ints, scores: Floats, cuts: Edges) -> Ints:
    """A number for each hit, the same for hits of one station that are one track's; for cylinders.

    They share a neighbour, inwards or outwards, by links above one half, and a track that passes the cuts on links
    could have left both.
    """
    strong = links[scores > STRONG]
    pairs = np.concatenate([_neighbours(hits, strong), _neighbours(hits, strong[:, ::-1])])
    same = components(pairs[_close(hits, pairs[:, 0], pairs[:, 1], cuts)], len(hits.u))
    return np.where(same >= 0, same + len(same), np.arange(len(same)))


def _neighbours(hits: Places, links: Ints) -> Ints:
    """Pairs of hits, next to each other in u, that are linked to one hit and lie on one station."""
    order = np.lexsort((hits.u[links[:, 1]], hits.station[links[:, 1]], links[:, 0]))
    first, second = links[order][:-1], links[order][1:]
    alike = (first[:, 0] == second[:, 0]) & (hits.station[first[:, 1]] == hits.station[second[:, 1]])
    return np.stack([first[alike, 1], second[alike, 1]], axis=1)


def _close(hits: Places, a: Ints, b: Ints, cuts: Edges) -> Bools:
    r, dr = hits.w[a], np.abs(hits.w[b] - hits.w[a])
    across = np.abs(hits.across(a, b)) * r
    along = np.abs(hits.v[b] - hits.v[a] - hits.v[a] / r * (hits.w[b] - hits.w[a]))
    return np.asarray((across < cuts.turn_cut * r * dr + ACROSS) & (along < cuts.z0_cut / r * dr + ALONG))
