"""Kinds of particles, and stacks of particles of all events of a block.

Masses, lifetimes and branching ratios are those of the Particle Data Group, 2024. They are constants here, because
events of one version must not depend on installed packages. A test compares them with the package `particle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

GAMMA, ELECTRON, POSITRON, MUON, ANTIMUON, PION_MINUS, PION_PLUS, KAON_MINUS, KAON_PLUS, PROTON = range(10)
NEUTRON, PION_ZERO, KAON_SHORT, LAMBDA, NEUTRINO = range(10, 15)
CHARGED = range(ELECTRON, PROTON + 1)
HADRONS = range(PION_MINUS, PROTON + 1)


class ParticleKind(NamedTuple):
    """PDG number, mass in MeV, and mean life times the speed of light in cm (infinite: treated as stable)."""

    pdg: int
    mass: float
    decay_length: float = np.inf


KINDS = (
    ParticleKind(22, 0.0),
    ParticleKind(11, 0.51099895),
    ParticleKind(-11, 0.51099895),
    ParticleKind(13, 105.6583755, 65863.84),
    ParticleKind(-13, 105.6583755, 65863.84),
    ParticleKind(-211, 139.57039, 780.45),
    ParticleKind(211, 139.57039, 780.45),
    ParticleKind(-321, 493.677, 371.14),
    ParticleKind(321, 493.677, 371.14),
    ParticleKind(2212, 938.272088),
    ParticleKind(2112, 939.565421),
    ParticleKind(111, 134.9768, 2.528e-6),
    ParticleKind(310, 497.611, 2.6844),
    ParticleKind(3122, 1115.683, 7.846),
    ParticleKind(12, 0.0),
)
MASS: Floats = np.array([kind.mass for kind in KINDS])
DECAY_LENGTH: Floats = np.array([kind.decay_length for kind in KINDS])
PDG: Ints = np.array([kind.pdg for kind in KINDS])
ELECTRON_MASS = KINDS[ELECTRON].mass


@dataclass(frozen=True)
class ParticleStack:
    """Particles of many events: event, kind, kinetic energy (MeV), position (n, 3) in cm, and direction (n, 3)."""

    event: Ints
    kind: Ints
    energy: Floats
    place: Floats
    direction: Floats

    def __len__(self) -> int:
        return len(self.event)

    def __getitem__(self, rows: Bools | Ints) -> ParticleStack:
        return ParticleStack(
            self.event[rows], self.kind[rows], self.energy[rows], self.place[rows], self.direction[rows]
        )

    @property
    def columns(self) -> tuple[Ints, Ints, Floats, Floats, Floats]:
        """The columns in the order of the fields."""
        return self.event, self.kind, self.energy, self.place, self.direction

    @property
    def momentum(self) -> Floats:
        """Absolute momentum, MeV."""
        return np.sqrt(self.energy * (self.energy + 2 * MASS[self.kind]))

    def of(self, *kinds: int) -> Bools:
        """Return which particles are of the given kinds."""
        selected = np.zeros(len(KINDS), dtype=bool)
        selected[list(kinds)] = True
        return np.asarray(selected[self.kind])

    def make(self, kind: int | Ints, energy: Floats, direction: Floats, rows: Ints | None = None) -> ParticleStack:
        """Return new particles at the positions of these particles, or of those in `rows`."""
        parents = np.arange(len(self)) if rows is None else rows
        kinds = np.broadcast_to(np.asarray(kind, dtype=np.int64), len(parents))
        return ParticleStack(self.event[parents], kinds, energy, self.place[parents], direction)


def join(stacks: Sequence[ParticleStack]) -> ParticleStack:
    """Concatenate stacks."""
    return ParticleStack(*(np.concatenate(columns) for columns in zip(*(each.columns for each in stacks), strict=True)))


def isotropic_directions(rng: Generator, size: int) -> Floats:
    """Return isotropic random directions (size, 3)."""
    return polar_direction(rng.uniform(-1, 1, size), rng.uniform(0, 2 * np.pi, size))


def polar_direction(cosine: Floats, turn: Floats) -> Floats:
    """Return directions (n, 3) from the cosine of the angle to the third axis, and the angle around it."""
    sine = np.sqrt(np.maximum(1 - cosine**2, 0))
    return np.stack([sine * np.cos(turn), sine * np.sin(turn), cosine], axis=1)


def perpendicular(direction: Floats) -> tuple[Floats, Floats]:
    """Return two directions that are perpendicular to each given direction and to each other."""
    x, y, z = direction.T
    steep, none = np.abs(x) > 0.8, np.zeros(len(direction))
    first = np.where(steep[:, None], np.stack([-z, none, x], axis=1), np.stack([none, z, -y], axis=1))
    first /= np.sqrt((first**2).sum(axis=1))[:, None]
    u, v, w = first.T
    return first, np.stack([y * w - z * v, z * u - x * w, x * v - y * u], axis=1)


def deflect(rng: Generator, direction: Floats, cosine: Floats) -> Floats:
    """Return directions at angles of the given cosines to `direction`, with a random azimuth."""
    first, second = perpendicular(direction)
    local = polar_direction(cosine, rng.uniform(0, 2 * np.pi, len(cosine)))
    return local[:, :1] * first + local[:, 1:2] * second + local[:, 2:] * direction
