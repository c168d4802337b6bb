"""Kinds of particles and stacks of them, all events of a block side by side.

Masses, lifetimes and branching ratios are those of the Particle Data Group, 2024. They are written here, and compared
with the package `particle` by a test: events of one version must not move with what is installed.
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


class Kind(NamedTuple):
    """What a particle is: PDG id, mass in MeV, mean life times the speed of light in cm (infinite: stable here)."""

    pdg: int
    mass: float
    reach: float = np.inf


KINDS = (
    Kind(22, 0.0),
    Kind(11, 0.51099895),
    Kind(-11, 0.51099895),
    Kind(13, 105.6583755, 65863.84),
    Kind(-13, 105.6583755, 65863.84),
    Kind(-211, 139.57039, 780.45),
    Kind(211, 139.57039, 780.45),
    Kind(-321, 493.677, 371.14),
    Kind(321, 493.677, 371.14),
    Kind(2212, 938.272088),
    Kind(2112, 939.565421),
    Kind(111, 134.9768, 2.528e-6),
    Kind(310, 497.611, 2.6844),
    Kind(3122, 1115.683, 7.846),
    Kind(12, 0.0),
)
MASS: Floats = np.array([kind.mass for kind in KINDS])
REACH: Floats = np.array([kind.reach for kind in KINDS])
PDG: Ints = np.array([kind.pdg for kind in KINDS])
ELECTRON_MASS = KINDS[ELECTRON].mass


@dataclass(frozen=True)
class Stack:
    """Particles of many events: the event of each, its kind, kinetic energy, place (n, 3) and direction (n, 3)."""

    event: Ints
    kind: Ints
    energy: Floats
    place: Floats
    direction: Floats

    def __len__(self) -> int:
        return len(self.event)

    def __getitem__(self, rows: Bools | Ints) -> Stack:
        return Stack(self.event[rows], self.kind[rows], self.energy[rows], self.place[rows], self.direction[rows])

    @property
    def columns(self) -> tuple[Ints, Ints, Floats, Floats, Floats]:
        """In the order of the fields."""
        return self.event, self.kind, self.energy, self.place, self.direction

    @property
    def momentum(self) -> Floats:
        """Size, in MeV."""
        return np.sqrt(self.energy * (self.energy + 2 * MASS[self.kind]))

    def of(self, *kinds: int) -> Bools:
        """Which are of these kinds."""
        wanted = np.zeros(len(KINDS), dtype=bool)
        wanted[list(kinds)] = True
        return np.asarray(wanted[self.kind])

    def make(self, kind: int | Ints, energy: Floats, direction: Floats, rows: Ints | None = None) -> Stack:
        """Others that begin where these (or those of `rows`) are."""
        own = np.arange(len(self)) if rows is None else rows
        kinds = np.broadcast_to(np.asarray(kind, dtype=np.int64), len(own))
        return Stack(self.event[own], kinds, energy, self.place[own], direction)


def join(stacks: Sequence[Stack]) -> Stack:
    """All of them, one after the other."""
    return Stack(*(np.concatenate(columns) for columns in zip(*(each.columns for each in stacks), strict=True)))


def isotropic(rng: Generator, size: int) -> Floats:
    """Directions (size, 3), all equally likely."""
    return polar(rng.uniform(-1, 1, size), rng.uniform(0, 2 * np.pi, size))


def polar(cosine: Floats, turn: Floats) -> Floats:
    """Directions (n, 3) by the cosine of the angle to the third axis, and the angle about it."""
    sine = np.sqrt(np.maximum(1 - cosine**2, 0))
    return np.stack([sine * np.cos(turn), sine * np.sin(turn), cosine], axis=1)


def across(direction: Floats) -> tuple[Floats, Floats]:
    """Two directions at right angles to each one given and to each other."""
    x, y, z = direction.T
    steep, none = np.abs(x) > 0.8, np.zeros(len(direction))
    first = np.where(steep[:, None], np.stack([-z, none, x], axis=1), np.stack([none, z, -y], axis=1))
    first /= np.sqrt((first**2).sum(axis=1))[:, None]
    u, v, w = first.T
    return first, np.stack([y * w - z * v, z * u - x * w, x * v - y * u], axis=1)


def turned(rng: Generator, direction: Floats, cosine: Floats) -> Floats:
    """Directions at angles of these cosines to those given, anywhere about them."""
    first, second = across(direction)
    local = polar(cosine, rng.uniform(0, 2 * np.pi, len(cosine)))
    return local[:, :1] * first + local[:, 1:2] * second + local[:, 2:] * direction
