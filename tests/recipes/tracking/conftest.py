"""The public BES-III sample, if it is available."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clew import Table, concat
from clew.recipes.tracking import Tracking

ROOT = Path(__file__).parents[3]


def real(name: str) -> Path:
    """A file of the public data in the folder CLEW_TEST_DATA."""
    path = Path(os.environ.get("CLEW_TEST_DATA", ROOT.parent / "shared" / "data")) / "tracking" / name
    if not path.is_file():
        pytest.skip(f"the public sample is not at {path}")
    return path


@pytest.fixture(scope="session")
def public_file() -> Path:
    """51 events of the public CGEM sample."""
    return real("ariadne/cgem_50_events.txt")


@pytest.fixture(scope="session")
def graph_file() -> Path:
    """100 TrackML events in 16 sectors each, as graphs."""
    return real("trackml_graphs/trackml_subgraphs_repacked.npz")


@pytest.fixture(scope="session")
def public(public_file: Path) -> Table:
    """The same graphs as a table."""
    return concat(list(Tracking().read(str(public_file))))
