"""Events in a file, and the modules next to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

MODULES = Path(__file__).parent / "modules.py"


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `modules.py` and `events.h5`: 301 events of two classes, with weights."""
    path = tmp_path_factory.mktemp("lightning")
    shutil.copy(MODULES, path / "modules.py")
    rng = np.random.default_rng(3)
    x = rng.normal(size=(301, 4)).astype(np.float32)
    with h5py.File(path / "events.h5", "w") as file:
        file["X"], file["Y"] = x, (x.sum(1) + rng.normal(size=301) > 0).astype(np.int64)
        file["w"] = rng.uniform(0.5, 2, 301)
    return path


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in that folder."""
    monkeypatch.chdir(folder)
