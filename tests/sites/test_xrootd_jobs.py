"""Jobs whose samples, datasets and models are in a real XRootD store. Server, agent and user are in its network."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clew import Dataset
from tests.sites.conftest_xrootd import Xrootd
from tests.sites.own_data import event_files
from tests.tuning.conftest import flat

__all__ = ["flat"]
pytestmark = pytest.mark.timeout(900)


def test_samples_in_xrootd_become_a_model_in_xrootd(xrootd: Xrootd, flat: Dataset, tmp_path: Path) -> None:
    place = f"{xrootd.url}/jobs-{time.time_ns()}"
    events = event_files(flat, tmp_path / "events")
    enter = xrootd.user(tmp_path).before
    steps = [sys.executable, "-m", "tests.sites.own_data", str(tmp_path), str(events)]
    command = [*enter, *steps, f"{place}/events-{{}}", f"{place}/mine-{{}}"]
    environment = {**os.environ, "CLEW_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
