"""Tracks from scored triplets: the best chains, then second hits where modules overlap.

A chain of triplets has the sum of their logits as its weight. Chains are accepted in order of falling weight unless a
hit belongs to an accepted one; then the best chains of the remaining hits are searched again, ROUNDS times.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from clew import Section, Table
from clew.recipes.tracking.geometry import Floats, Ints, Positive, wrap_angle
from clew.recipes.tracking.pairs import expand_ranges
from clew.recipes.tracking.triplets import PULL_UNIT, hit_errors
from clew.recipes.tracking.truth import renumber

ROUNDS = 4
MIN_CHAIN = 4
"""Smallest number of hits of a chain, without second hits on a layer."""
LARGEST_LOGIT = 6.0
OVERLAP_WINDOW = 0.02
"""rad within which a second hit on the same layer is searched; modules that overlap differ by a few mm in radius."""


class ChainConfig(Section):
    """How tracks are built from scores of triplets."""

    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Triplets with a lower score are ignored. A chain may contain triplets with a score below 0.5 if others outweigh
    them."""
    min_hits: Annotated[int, Field(ge=MIN_CHAIN)] = 6
    """Tracks with fewer hits are removed."""
    overlap_pull: Positive = 5.0
    """A second hit on a layer joins a track if it is within so many standard deviations of its direction there."""


class HitPlaces(NamedTuple):
    """Event, station, phi (rad), r and z (mm), and errors (see `triplets.hit_errors`) of hits of a table."""

    event: Ints
    station: Ints
    phi: Floats
    r: Floats
    z: Floats
    errors: Floats

    @classmethod
    def of(cls, events: Table) -> HitPlaces:
        """From the columns x, y, z and `station`."""
        x, y, z = (events.ragged(name).values.astype(np.float64) for name in "xyz")
        station = events.ragged("station").values.astype(np.int64)
        r = np.hypot(x, y)
        return cls(events.ragged("x").events, station, np.arctan2(y, x), r, z, hit_errors(station, r))


def pull_logits(samples: Table) -> Floats:
    """Scores of triplets without a network, from the changes of curvature and dz/ds alone: a rule to compare with."""
    pulls = samples.ragged("edge").values[:, :2].astype(np.float64) * PULL_UNIT
    return np.asarray(3.0 - 0.75 * np.abs(pulls).sum(axis=1))


def from_triplets(hits: HitPlaces, triples: Ints, logits: Floats, config: ChainConfig) -> Ints:
    """Tracks from triplets.

    Args:
        hits: All hits.
        triples: The three hits of each triplet, from the inside out (triplets, 3).
        logits: The logit of each triplet.
        config: Threshold and smallest number of hits.

    Returns:
        The track of each hit; -1 for none.
    """
    strong = logits > np.log(config.threshold / (1 - config.threshold))
    triples, weight = triples[strong], np.clip(logits[strong], -LARGEST_LOGIT, LARGEST_LOGIT)
    size = len(hits.station)
    keys = np.concatenate([triples[:, 0] * size + triples[:, 1], triples[:, 1] * size + triples[:, 2]])
    codes, rows = np.unique(keys, return_inverse=True)
    pairs = np.stack(np.divmod(codes, max(size, 1)), axis=1)
    triplets = rows.reshape(2, -1).T.copy()
    owner = _chains(hits, pairs, triplets, weight.astype(np.float64), config)
    count = np.bincount(owner[owner >= 0], minlength=1)
    return renumber(np.where(count[owner] >= config.min_hits, owner, -1))


def _chains(hits: HitPlaces, pairs: Ints, triplets: Ints, weight: Floats, config: ChainConfig) -> Ints:
    """The chain of each hit; -1 for none.

    Second hits on a layer are added in every round: those of several layers would make a chain of their own.
    """
    from clew.recipes.tracking import triplet_kernels  # numba is imported where it is needed

    owner, number = np.full(len(hits.station), -1, dtype=np.int64), 0
    order = np.argsort(hits.station[pairs[triplets[:, 0], 1]], kind="stable")
    for _ in range(ROUNDS):
        free = (owner[pairs[:, 0]] < 0) & (owner[pairs[:, 1]] < 0)
        rank = order[free[triplets[order, 0]] & free[triplets[order, 1]]]
        best, previous = np.zeros(len(pairs)), np.full(len(pairs), -1, dtype=np.int64)
        triplet_kernels.best_chains(triplets, rank, weight, best, previous)
        ends = np.flatnonzero(best > 0)
        ends = ends[np.argsort(-best[ends], kind="stable")]
        last, number = number, triplet_kernels.accept_chains(ends, previous, pairs, MIN_CHAIN, owner, number)
        if number == last:
            break
        owner = _with_overlaps(hits, pairs, owner, config.overlap_pull)
    return owner


def _with_overlaps(hits: HitPlaces, pairs: Ints, owner: Ints, pull: float) -> Ints:
    """Add to each track the free hits that lie on its path on a layer where it has a hit."""
    inside = owner[pairs[:, 0]] >= 0
    pairs = pairs[inside & (owner[pairs[:, 0]] == owner[pairs[:, 1]])]
    curvature, slope = _directions(hits, pairs)
    hit, which = np.unique(pairs.T.ravel(), return_index=True)
    curvature, slope = np.tile(curvature, 2)[which], np.tile(slope, 2)[which]
    free = np.flatnonzero(owner < 0)
    row, other = _near(hits, hit, free)
    distance = _distance(hits, hit[row], other, curvature[row], slope[row])
    close = np.flatnonzero(distance < pull)
    close = close[np.argsort(-distance[close], kind="stable")]  # the nearest is written last
    owner = owner.copy()
    owner[other[close]] = owner[hit[row[close]]]
    return owner


def _directions(hits: HitPlaces, pairs: Ints) -> tuple[Floats, Floats]:
    """Curvature and dz/ds of pairs."""
    a, b = pairs[:, 0], pairs[:, 1]
    delta = wrap_angle(hits.phi[b] - hits.phi[a])
    chord = np.sqrt((hits.r[b] - hits.r[a]) ** 2 + 2 * hits.r[a] * hits.r[b] * (1 - np.cos(delta)))
    chord = np.maximum(chord, 1e-3)
    return 2 * np.sin(delta) / chord, (hits.z[b] - hits.z[a]) / chord


def _near(hits: HitPlaces, rows: Ints, free: Ints) -> tuple[Ints, Ints]:
    """Pairs of a position in `rows` and a free hit of the same event and station, closer than OVERLAP_WINDOW in phi."""
    stations = int(hits.station.max(initial=0)) + 1
    place = (hits.event * stations + hits.station) * 16.0
    free = free[np.argsort(place[free] + hits.phi[free], kind="stable")]
    key = place[free] + hits.phi[free]
    shift = np.array([-2 * np.pi, 0.0, 2 * np.pi])
    centre = (place[rows] + hits.phi[rows])[:, None] + shift
    first = np.searchsorted(key, (centre - OVERLAP_WINDOW).ravel())
    last = np.searchsorted(key, (centre + OVERLAP_WINDOW).ravel())
    row, position = expand_ranges(first, last)
    return row // 3, free[position]


def _distance(hits: HitPlaces, hit: Ints, other: Ints, curvature: Floats, slope: Floats) -> Floats:
    """How far a hit is from the path of a track through another hit of its layer, in standard deviations."""

    def turn(radius: Floats) -> Floats:
        return np.arcsin(np.clip(curvature * radius / 2, -1, 1))

    bend = turn(hits.r[other]) - turn(hits.r[hit])
    across = hits.r[other] * wrap_angle(hits.phi[other] - hits.phi[hit] - bend)
    along = hits.z[other] - hits.z[hit] - slope * (hits.r[other] - hits.r[hit])
    error = hits.errors[hit] + hits.errors[other]
    depth = error[:, 1] + error[:, 2] * np.abs(slope)
    width = np.hypot(error[:, 0], hits.r[hit] * curvature / 2 * error[:, 2])
    return np.hypot(across / (0.75 * width + 0.02), along / (0.75 * depth + 0.05))
