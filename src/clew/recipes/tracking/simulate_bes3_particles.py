"""Charged particles of BES-III-like events: multiplicity, momenta, start positions.

The numbers were measured on the public sample. "tuned" marks those adjusted by hand. Units: mm, GeV, rad.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from clew.recipes.tracking.geometry import Floats, Ints

MULTIPLICITY = (0.22, 0.32, 0.34, 0.12)  # probabilities of 2, 4, 6, 8 charged particles, from the tracks per event
MOMENTUM_MEDIAN, MOMENTUM_SPREAD = 0.34, 0.78  # log-normal
MOMENTUM_MAX = 1.55  # half the J/psi mass, from physics
BALANCE = 0.4  # tuned: share of an event's mean momentum that is subtracted; neutral particles carry the rest
LEPTONS = 0.06  # events with a back-to-back pair at the top momentum: 3 of 51
VERTEX_MEAN, VERTEX_SPREAD = 3.5, 7.2  # z of the vertex
DECAY_SHARE, DECAY_LENGTH = 0.15, 50.0  # tuned on residual tails: share of pairs from decays, mean flight length
DRIFT = 0.3  # tuned: rad by which an orbit shifts in each turn


class Bes3Particles(NamedTuple):
    """Charged particles, ordered by event. `start` and `momentum` have shape (particles, 3)."""

    event: Ints
    start: Floats
    momentum: Floats
    sense: Floats  # +1 or -1: turns towards larger or smaller phi
    drift: Floats  # rad by which the orbit shifts in each turn


def particles(rng: Generator, events: int) -> Bes3Particles:
    """Pairs of particles of opposite charge from a vertex near the origin. Some start after a flight path."""
    count = 2 * rng.choice(np.arange(1, 5), events, p=MULTIPLICITY)
    event = np.repeat(np.arange(events), count)
    momentum = _momenta(rng, event, count)
    start = _flights(rng, momentum)
    start[:, 2] += rng.normal(VERTEX_MEAN, VERTEX_SPREAD, events)[event]
    sense = np.tile([1.0, -1.0], len(event) // 2)
    return Bes3Particles(event, start, momentum, sense, rng.normal(0, DRIFT, len(event)))


def _momenta(rng: Generator, event: Ints, count: Ints) -> Floats:
    """Momenta (particles, 3): isotropic, partly balanced within an event. Some events have a lepton pair."""
    size, first = len(event), np.cumsum(count) - count
    cosine, azimuth = rng.uniform(-1, 1, size), rng.uniform(0, 2 * np.pi, size)
    sine = np.sqrt(1 - cosine**2)
    momentum = np.stack([sine * np.cos(azimuth), sine * np.sin(azimuth), cosine], axis=1)
    momentum *= rng.lognormal(np.log(MOMENTUM_MEDIAN), MOMENTUM_SPREAD, (size, 1))
    momentum -= BALANCE * (np.add.reduceat(momentum, first) / count[:, None])[event]
    norm = np.linalg.norm(momentum, axis=1, keepdims=True)
    magnitude = np.minimum(norm, MOMENTUM_MAX)
    lepton = first[rng.random(len(count)) < LEPTONS]
    magnitude[lepton] = MOMENTUM_MAX
    momentum *= magnitude / norm
    momentum[lepton + 1] = -momentum[lepton]
    return momentum


def _flights(rng: Generator, momentum: Floats) -> Floats:
    """Start positions relative to the vertex. Some pairs start after a flight along their common momentum."""
    pair = momentum[0::2] + momentum[1::2]
    length = rng.exponential(DECAY_LENGTH, len(pair)) * (rng.random(len(pair)) < DECAY_SHARE)
    norm = np.linalg.norm(pair, axis=1) + 1e-9  # a back-to-back pair has no direction and is not moved
    return np.repeat(pair * (length / norm)[:, None], 2, axis=0)
