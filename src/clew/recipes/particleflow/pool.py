"""Pile-up: minimum-bias collisions from a pool that is made once and kept in clew's cache.

The pool is finite, so collisions come again; each time one is turned around the beam by a random angle, mirrored or
not, and put at another place along the beam, none of which changes the physics.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.random import Generator as Random
from numpy.typing import NDArray
from pydantic import Field

from clew import Section, Table, cached_table, concat
from clew.recipes.particleflow import collisions
from clew.recipes.particleflow.truth import Particles

PART = 2500
"""Collisions that one process makes at a time."""
SPREAD = 0.053
"""Of collisions along the beam: the standard deviation, m."""
FORMAT = 1
"""Raise it when collisions of the same settings become others."""


class PoolSettings(Section):
    """Minimum-bias collisions that pile-up is drawn from."""

    size: Annotated[int, Field(ge=1)] = 10_000
    """How many. More repeat less, and take longer the first time."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Samples that are to share no collision need pools of different seeds."""


class Pool(NamedTuple):
    """All collisions one after the other, and where each begins."""

    particles: Particles
    offsets: NDArray[np.int64]

    def draw(self, many: int, random: Random) -> tuple[Particles, NDArray[np.float32]]:
        """The particles of so many collisions, and where along the beam each comes from."""
        picked = random.integers(0, len(self.offsets) - 1, many)
        turn, side, place = random.uniform(-np.pi, np.pi, many), random.integers(0, 2, many), random.normal(size=many)
        lengths = self.offsets[picked + 1] - self.offsets[picked]
        begin = np.cumsum(lengths) - lengths
        rows = np.arange(lengths.sum()) + np.repeat(self.offsets[picked] - begin, lengths)
        own = self.particles.take(rows)
        phi = own.phi + np.repeat(turn.astype(np.float32), lengths)
        eta = own.eta * np.repeat((1 - 2 * side).astype(np.float32), lengths)
        return own._replace(phi=phi, eta=eta), np.repeat((SPREAD * place).astype(np.float32), lengths)


@lru_cache(maxsize=1)
def opened(settings: PoolSettings, energy: float) -> Pool:
    """The pool; parts that are missing are made, by all processes that ask for it at once.

    Raises:
        RecipeError: parts are missing, and pythia8mc is not installed.
    """
    count = -(-settings.size // PART)
    for number in np.random.default_rng(os.getpid()).permutation(count):  # each begins elsewhere, and so they share it
        _part(int(number), settings, energy)
    return of(concat([_part(number, settings, energy) for number in range(count)]).slice(0, settings.size))


def of(made: Table) -> Pool:
    """A pool of these collisions."""
    return Pool(particles(made), made.ragged("pt").offsets)


def particles(made: Table) -> Particles:
    """All their particles."""
    return Particles(*(made.ragged(name).values for name in Particles._fields))


def _part(number: int, settings: PoolSettings, energy: float) -> Table:
    about: dict[str, Any] = {"what": "particleflow pool", "format": FORMAT, "energy": energy, "events": PART}
    about |= {"seed": settings.seed, "part": number, "pythia": collisions.version()}
    about |= {"settings": collisions.SETTINGS["minimum bias"]}
    stream = int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0]) % 900_000_000
    return cached_table(about, lambda: collisions.Started("minimum bias", stream + 1, energy=energy).collisions(PART))
