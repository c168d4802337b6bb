"""Parametric events without Pythia: soft particles with the numbers and spectra of pile-up, and cones of hard ones.

They are not physics: there are no decays, no momentum balance, no flavour. Since they go through the same detector,
their classes can be identified from the features of elements as in simulated collisions. Units: GeV.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator as Random

from clew.recipes.particleflow.columns import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, PHOTON
from clew.recipes.particleflow.pythia import MAX_ETA
from clew.recipes.particleflow.targets import VisibleParticles

NOTE = "parametric, not physics"


class ParametricSpecies(NamedTuple):
    """A class of particles: its fraction of soft and of hard particles, its mass, and the spectrum of soft ones."""

    soft: float
    hard: float
    mass: float
    charged: bool
    scale: float
    """Scale of the transverse momentum, GeV."""
    shape: float
    """Shape of the spectrum: a smaller value gives more particles of low momentum."""


SPECIES: dict[int, ParametricSpecies] = {
    CHARGED_HADRON: ParametricSpecies(0.4552, 0.585, 0.14, True, 0.335, 1.6),
    NEUTRAL_HADRON: ParametricSpecies(0.0477, 0.110, 0.70, False, 0.410, 2.0),
    PHOTON: ParametricSpecies(0.4797, 0.298, 0.0, False, 0.215, 1.1),
    ELECTRON: ParametricSpecies(0.0072, 0.005, 0.0005, True, 0.22, 0.7),
    MUON: ParametricSpecies(0.00035, 0.002, 0.106, True, 0.45, 1.5),
}
TAIL_POWER = 8.0
"""Approximate power with which spectra fall."""
SOFT_PARTICLES = (147.0, 139.0)
"""Soft particles per collision: mean and standard deviation."""
HARD_COLLISION_WEIGHT = 2
"""The hard collision has as many soft particles as this number of pile-up collisions."""
MEAN_CONES = 5.0
"""Mean number of cones of hard particles per event."""
ETA_DENSITY = (6.7, 6.95, 7.2, 7.35, 7.4, 7.2, 6.95, 6.6, 6.15, 5.6, 5.1)
"""Density of soft particles in bins of |eta| of width 0.5."""


def make_particles(pileup: float, random: Random) -> VisibleParticles:
    """Return the visible particles of one event with a mean of `pileup` pile-up collisions."""
    collisions = HARD_COLLISION_WEIGHT + int(random.poisson(pileup))
    shape = (SOFT_PARTICLES[0] / SOFT_PARTICLES[1]) ** 2
    count = int(random.poisson(random.gamma(collisions * shape, SOFT_PARTICLES[0] / shape)))
    parts = [_soft_particles(count, random), *(_cone_particles(random) for _ in range(int(random.poisson(MEAN_CONES))))]
    return VisibleParticles(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def missing_pt(random: Random) -> float:
    """Return a random missing transverse momentum. It is independent of the rest of the event."""
    return float(random.exponential(50.0))


def _soft_particles(count: int, random: Random) -> VisibleParticles:
    kind = _draw_classes(count, [species.soft for species in SPECIES.values()], random)
    pt = np.empty(count)
    for number, species in SPECIES.items():
        rows = np.flatnonzero(kind == number)
        fall = random.standard_gamma(TAIL_POWER, len(rows)) / TAIL_POWER
        pt[rows] = species.scale * random.standard_gamma(species.shape, len(rows)) / fall
    edges = np.linspace(0, MAX_ETA, len(ETA_DENSITY) + 1)
    below = np.append(0, np.cumsum(ETA_DENSITY)) / np.sum(ETA_DENSITY)
    eta = np.interp(random.random(count), below, edges) * (1 - 2 * random.integers(0, 2, count))
    return _build_particles(kind, pt, eta, random.uniform(-np.pi, np.pi, count), random)


def _cone_particles(random: Random) -> VisibleParticles:
    """Return particles that share a total momentum. Harder particles are closer to its direction."""
    total = 30 + random.exponential(40.0)
    count = 4 + int(random.poisson(0.25 * total + 4))
    share = random.standard_gamma(0.7, count)
    pt = np.maximum(total * share / share.sum(), 0.01)
    offset = 0.2 * random.standard_normal((2, count)) / np.sqrt(1 + pt / 2)
    eta = 1.5 * random.standard_normal()
    kind = _draw_classes(count, [each.hard for each in SPECIES.values()], random)
    return _build_particles(kind, pt, eta + offset[0], random.uniform(-np.pi, np.pi) + offset[1], random)


def _draw_classes(count: int, shares: list[float], random: Random) -> Any:
    bounds = np.cumsum(shares) / np.sum(shares)
    return np.array(list(SPECIES), dtype=np.int8)[np.searchsorted(bounds[:-1], random.random(count), side="right")]


def _build_particles(kind: Any, pt: Any, eta: Any, phi: Any, random: Random) -> VisibleParticles:
    mass, charged = np.zeros(max(SPECIES) + 1), np.zeros(max(SPECIES) + 1, dtype=np.int8)
    for number, species in SPECIES.items():
        mass[number], charged[number] = species.mass, species.charged
    charge = charged[kind] * (1 - 2 * random.integers(0, 2, len(kind), dtype=np.int8))
    return VisibleParticles(pt, eta, phi, np.hypot(pt * np.cosh(eta), mass[kind]), charge, kind)
