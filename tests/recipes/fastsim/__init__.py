"""Tests of the recipe `fastsim`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHOWERS = (
    Path(os.environ.get("CLEW_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
    / "fastsim/geant4_electrons_2560.h5"
)
needs_showers = pytest.mark.skipif(not SHOWERS.is_file(), reason=f"no Geant4 showers in {SHOWERS}")
