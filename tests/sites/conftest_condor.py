"""An HTCondor pool for the session, and a profile of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.core.config import to_yaml
from tests.sites.condor_pool import Pool, missing

PROFILE = {"scheduler": "condor", "poll_seconds": 0.3, "wall_time": 600, "wall_time_limit": 3600}


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool of one machine with real HTCondor."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Pool(tmp_path_factory.mktemp("condor")) as running:
        yield running


@pytest.fixture
def condor(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    """The pool as the site `here`; the test works in tmp_path."""
    monkeypatch.setenv("CONDOR_CONFIG", str(pool.config))
    monkeypatch.setenv("PATH", f"{pool.commands}:{os.environ['PATH']}")
    monkeypatch.setenv("CLEW_SITES", str(tmp_path / "sites"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "here.yaml").write_text(to_yaml(PROFILE))
    return pool
