"""Shared by the tests of the jet recipes: jets that are easy to classify, made without a generator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew import Ragged, Table

ROOT = Path(__file__).parents[3]


def real(name: str) -> Path:
    """A file of the public data in the folder CLEW_TEST_DATA."""
    path = Path(os.environ.get("CLEW_TEST_DATA", ROOT.parent / "shared" / "data")) / "jets" / name
    if not path.is_file():
        pytest.skip(f"the public sample is not at {path}")
    return path


def jets(count: int, seed: int = 1, classes: int = 5) -> Table:
    """Jets in the columns of the generator: a class has more constituents, farther out, than the one before it."""
    rng = np.random.default_rng(seed)
    label = np.arange(count) % classes
    lengths = rng.poisson(8 + 4 * label)
    lengths[:2] = 0, 1
    of = np.repeat(label, lengths)
    pt = Ragged.from_lengths(rng.exponential(20, lengths.sum()) + 0.5, lengths)
    angle, far = rng.uniform(0, 2 * np.pi, len(of)), rng.exponential(0.05 + 0.06 * of)
    columns: dict[str, Any] = {
        "event": np.arange(count),
        "label": label,
        "jet_pt": rng.uniform(500, 700, count) - 20 * label,
        "jet_mass": rng.uniform(50, 100, count) + 10 * label,
        "jet_energy": rng.uniform(700, 1500, count),
        "part_pt": pt,
        "part_energy": pt.share(pt.values * 1.2),
        "part_deta": pt.share(far * np.cos(angle)),
        "part_dphi": pt.share(far * np.sin(angle)),
        "part_charge": pt.share(rng.integers(-1, 2, len(of))),
        "part_pid": pt.share(rng.choice([211, 22, 130, 11, -13], len(of))),
    }
    return Table(columns, units={"jet_pt": "GeV"})
