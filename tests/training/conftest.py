"""Flat datasets, for recipes whose right answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew import Dataset, Table
from tests.training import recipe


def flat_dataset(folder: Path, *, events: int = 300, weights: tuple[float, float] | None = None) -> Dataset:
    """x (3 numbers) and y = x . (1, -2, 0.5) + 0.3 with a little noise; weights between two numbers if given."""
    folder.mkdir(exist_ok=True)
    table = flat_events(events=events, weights=weights)
    columns: dict[str, Any] = {name: table.fixed(name) for name in table}
    np.savez(folder / "events.npz", **columns)  # no HDF5: it starts a process
    return clew.prepare(recipe("line"), input=[str(folder / "events.npz")], output=str(folder / "dataset"), workers=1)


def flat_events(*, events: int = 300, weights: tuple[float, float] | None = None) -> Table:
    """The events of `flat_dataset`, which are its samples, too."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(events, 3)).astype(np.float32)
    y = (x @ [1, -2, 0.5] + 0.3 + 0.1 * rng.normal(size=events)).astype(np.float32)
    weight = {"weight": weights[0] + (weights[1] - weights[0]) * rng.random(events)} if weights else {}
    return Table({"x": x, "y": y, **weight})


@pytest.fixture(scope="session")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return flat_dataset(tmp_path_factory.mktemp("flat"))


@pytest.fixture(scope="session")
def samples() -> Table:
    """As those of `flat`, without a dataset."""
    return flat_events(events=200)


@pytest.fixture(scope="session")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return flat_dataset(tmp_path_factory.mktemp("weighted"), weights=(-1, 2))
