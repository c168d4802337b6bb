"""Events for the tests of the recipe: shot straight ahead, or drawn by the generator."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from clew.recipes.lartpc.generate.charged_transport import Deposits
from clew.recipes.lartpc.generate.particles import ParticleStack
from clew.recipes.lartpc.generate.transport import Transport, World

DATA = (
    Path(os.environ.get("CLEW_TEST_DATA", Path(__file__).parents[4] / "shared" / "data")) / "lartpc/wire-cell-toolkit"
)
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no public LArTPC data in {DATA}")


def beam(kind: int, energy: float, size: int) -> ParticleStack:
    """Particles of one kind and kinetic energy (MeV), one per event, from the origin along z."""
    along = np.tile([0.0, 0.0, 1.0], (size, 1))
    return ParticleStack(np.arange(size), np.full(size, kind), np.full(size, energy), np.zeros((size, 3)), along)


def shoot(kind: int, energy: float, size: int, seed: int = 1) -> tuple[Deposits, Transport]:
    """The same, followed to the end in argon without walls."""
    transport = Transport(np.random.default_rng(seed), World(np.full(3, -4000.0), np.full(3, 4000.0)), size)
    return transport.run(beam(kind, energy, size)), transport
