"""Pile-up: minimum-bias collisions from a pool that is generated once and stored in the cache of clew.

The pool is finite, so collisions are used several times. Each time a collision is rotated around the beam by a random
angle, mirrored at random, and moved to a random position along the beam. None of these changes the physics.
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
from clew.recipes.particleflow import pythia
from clew.recipes.particleflow.targets import VisibleParticles

COLLISIONS_PER_PART = 2500
"""Collisions per part of the pool. One process generates one part at a time."""
BEAM_SPREAD = 0.053
"""Standard deviation of the position of collisions along the beam, m."""
FORMAT = 1
"""Increase this number when the same settings give different collisions."""


class PileupPoolConfig(Section):
    """The pool of minimum-bias collisions from which pile-up is drawn."""

    size: Annotated[int, Field(ge=1)] = 10_000
    """Number of collisions. A larger pool repeats less, and takes longer the first time."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the pool. Samples that must not share collisions need pools of different seeds."""


class PileupPool(NamedTuple):
    """The particles of all collisions one after the other, and the offset of each collision."""

    particles: VisibleParticles
    offsets: NDArray[np.int64]

    def draw_collisions(self, count: int, random: Random) -> tuple[VisibleParticles, NDArray[np.float32]]:
        """Return the particles of `count` random collisions, and the position along the beam of each particle, m."""
        picked = random.integers(0, len(self.offsets) - 1, count)
        rotation, mirrored, place = (
            random.uniform(-np.pi, np.pi, count),
            random.integers(0, 2, count),
            random.normal(size=count),
        )
        lengths = self.offsets[picked + 1] - self.offsets[picked]
        starts = np.cumsum(lengths) - lengths
        rows = np.arange(lengths.sum()) + np.repeat(self.offsets[picked] - starts, lengths)
        particles = self.particles.take(rows)
        phi = particles.phi + np.repeat(rotation.astype(np.float32), lengths)
        eta = particles.eta * np.repeat((1 - 2 * mirrored).astype(np.float32), lengths)
        return particles._replace(phi=phi, eta=eta), np.repeat((BEAM_SPREAD * place).astype(np.float32), lengths)


@lru_cache(maxsize=1)
def load_pool(settings: PileupPoolConfig, energy: float) -> PileupPool:
    """Load the pool. Missing parts are generated, shared between all processes that load the pool at the same time.

    Raises:
        RecipeError: Parts are missing, and pythia8mc is not installed.
    """
    count = -(-settings.size // COLLISIONS_PER_PART)
    for number in np.random.default_rng(os.getpid()).permutation(count):  # processes share the work
        _load_part(int(number), settings, energy)
    return pool_from_table(
        concat([_load_part(number, settings, energy) for number in range(count)]).slice(0, settings.size)
    )


def pool_from_table(collisions: Table) -> PileupPool:
    """Return a pool of the collisions of a table."""
    return PileupPool(particles_from_table(collisions), collisions.ragged("pt").offsets)


def particles_from_table(collisions: Table) -> VisibleParticles:
    """Return the particles of all collisions of a table."""
    return VisibleParticles(*(collisions.ragged(name).values for name in VisibleParticles._fields))


def _load_part(number: int, settings: PileupPoolConfig, energy: float) -> Table:
    key: dict[str, Any] = {
        "what": "particleflow pool",
        "format": FORMAT,
        "energy": energy,
        "events": COLLISIONS_PER_PART,
    }
    key |= {"seed": settings.seed, "part": number, "pythia": pythia.pythia_version()}
    key |= {"settings": pythia.PROCESS_SETTINGS["minimum bias"]}
    stream = int(np.random.SeedSequence([settings.seed, number]).generate_state(1)[0]) % 900_000_000
    return cached_table(
        key, lambda: pythia.PythiaGenerator("minimum bias", stream + 1, energy=energy).collisions(COLLISIONS_PER_PART)
    )
