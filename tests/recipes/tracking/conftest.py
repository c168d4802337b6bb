"""The public BES-III sample, where it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clew import Table, concat
from clew.recipes.tracking import Tracking

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def public_file() -> Path:
    """51 events of the public CGEM sample; CLEW_TEST_DATA says where the data lies."""
    folder = Path(os.environ.get("CLEW_TEST_DATA", ROOT.parent / "shared" / "data"))
    path = folder / "tracking" / "ariadne" / "cgem_50_events.txt"
    if not path.is_file():
        pytest.skip(f"the public sample is not at {path}")
    return path


@pytest.fixture(scope="session")
def public(public_file: Path) -> Table:
    """The same, read."""
    return concat(list(Tracking().read(str(public_file))))
