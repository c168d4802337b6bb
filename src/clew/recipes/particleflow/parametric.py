"""Particles without Pythia: soft ones with the numbers and spectra of pile-up, and a few cones of hard ones.

Parametric, not physics: no decays, no momentum balance, no flavour. What they are for is elements whose classes can be
told from features as in the real thing, since they go through the same detector. Units: GeV.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator as Random

from clew.recipes.particleflow.collisions import FARTHEST
from clew.recipes.particleflow.columns import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, PHOTON
from clew.recipes.particleflow.truth import Particles

NOTE = "parametric, not physics"


class Species(NamedTuple):
    """A class of particles: its share of soft and of hard ones, its mass, and the spectrum of soft ones."""

    soft: float
    hard: float
    mass: float
    charged: bool
    scale: float
    """Of transverse momentum."""
    shape: float
    """The smaller, the more particles at low momenta."""


SPECIES: dict[int, Species] = {
    CHARGED_HADRON: Species(0.4552, 0.585, 0.14, True, 0.335, 1.6),
    NEUTRAL_HADRON: Species(0.0477, 0.110, 0.70, False, 0.410, 2.0),
    PHOTON: Species(0.4797, 0.298, 0.0, False, 0.234, 1.1),
    ELECTRON: Species(0.0072, 0.005, 0.0005, True, 0.22, 0.7),
    MUON: Species(0.00035, 0.002, 0.106, True, 0.45, 1.5),
}
TAIL = 8.0
"""Of spectra: they fall about with this power."""
SOFT = (147.0, 139.0)
"""Soft particles of a collision: mean, standard deviation."""
EXTRA = 2
"""Collisions that the soft particles of the hard one count for."""
CONES = 5.0
"""Mean number of cones of hard particles."""
PLATEAU = (6.7, 6.95, 7.2, 7.35, 7.4, 7.2, 6.95, 6.6, 6.15, 5.6, 5.1)
"""Soft particles in steps of half a unit of |eta|."""


def particles(pileup: float, random: Random) -> Particles:
    """The visible particles of one event."""
    collisions = EXTRA + int(random.poisson(pileup))
    shape = (SOFT[0] / SOFT[1]) ** 2
    many = int(random.poisson(random.gamma(collisions * shape, SOFT[0] / shape)))
    parts = [_soft(many, random), *(_cone(random) for _ in range(int(random.poisson(CONES))))]
    return Particles(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def missing(random: Random) -> float:
    """A missing transverse momentum: nothing else in the event knows of it."""
    return float(random.exponential(50.0))


def _soft(many: int, random: Random) -> Particles:
    kind = _kinds(many, [each.soft for each in SPECIES.values()], random)
    pt = np.empty(many)
    for number, each in SPECIES.items():
        own = np.flatnonzero(kind == number)
        fall = random.standard_gamma(TAIL, len(own)) / TAIL
        pt[own] = each.scale * random.standard_gamma(each.shape, len(own)) / fall
    edges = np.linspace(0, FARTHEST, len(PLATEAU) + 1)
    below = np.append(0, np.cumsum(PLATEAU)) / np.sum(PLATEAU)
    eta = np.interp(random.random(many), below, edges) * (1 - 2 * random.integers(0, 2, many))
    return _made(kind, pt, eta, random.uniform(-np.pi, np.pi, many), random)


def _cone(random: Random) -> Particles:
    """Particles that share a momentum, nearer to its direction the harder they are."""
    total = 30 + random.exponential(40.0)
    many = 4 + int(random.poisson(0.25 * total + 4))
    share = random.standard_gamma(0.7, many)
    pt = np.maximum(total * share / share.sum(), 0.01)
    away = 0.2 * random.standard_normal((2, many)) / np.sqrt(1 + pt / 2)
    middle = 1.5 * random.standard_normal()
    kind = _kinds(many, [each.hard for each in SPECIES.values()], random)
    return _made(kind, pt, middle + away[0], random.uniform(-np.pi, np.pi) + away[1], random)


def _kinds(many: int, shares: list[float], random: Random) -> Any:
    bounds = np.cumsum(shares) / np.sum(shares)
    return np.array(list(SPECIES), dtype=np.int8)[np.searchsorted(bounds[:-1], random.random(many), side="right")]


def _made(kind: Any, pt: Any, eta: Any, phi: Any, random: Random) -> Particles:
    mass, charged = np.zeros(max(SPECIES) + 1), np.zeros(max(SPECIES) + 1, dtype=np.int8)
    for number, each in SPECIES.items():
        mass[number], charged[number] = each.mass, each.charged
    charge = charged[kind] * (1 - 2 * random.integers(0, 2, len(kind), dtype=np.int8))
    return Particles(pt, eta, phi, np.hypot(pt * np.cosh(eta), mass[kind]), charge, kind)
