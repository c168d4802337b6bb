"""Jobs whose samples, datasets and models are in a real Rucio."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clew import Dataset
from tests.sites.conftest_rucio import RSE, SCOPE, Rucio
from tests.sites.own_data import both_ways, event_files
from tests.tuning.conftest import flat

__all__ = ["flat"]
pytestmark = pytest.mark.timeout(900)


def test_samples_in_rucio_become_a_model_in_rucio(
    rucio: Rucio, flat: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    name = f"rucio:{SCOPE}:jobs-{time.time_ns()}"
    events = event_files(flat, tmp_path / "events")
    both_ways(tmp_path, events, f"{name}-events-{{}}", f"{name}-mine-{{}}?rse={RSE}")
