"""Flat data for the recipe `slope`, in three files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clew
from clew import Dataset
from tests.tuning import RECIPE


@pytest.fixture(scope="session")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """y = x . (1, -2, 0.5) + 0.3 with a little noise; 300 events in three files of different sizes."""
    folder: Path = tmp_path_factory.mktemp("slope")
    rng = np.random.default_rng(5)
    for number, events in enumerate((60, 100, 140)):
        x = rng.normal(size=(events, 3)).astype(np.float32)
        y = (x @ [1, -2, 0.5] + 0.3 + 0.1 * rng.normal(size=events)).astype(np.float32)
        np.savez(
            folder / f"events-{number}.npz", x=x, y=y, part=np.full(events, number)
        )  # no HDF5: it starts a process
    return clew.prepare(RECIPE, input=[str(folder / "*.npz")], output=str(folder / "dataset"), workers=1)
