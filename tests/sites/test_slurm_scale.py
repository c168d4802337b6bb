"""A scaling study on real Slurm: one job a size."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from clew import Dataset
from tests.cli import done
from tests.sites import long
from tests.sites.cluster import Cluster
from tests.sites.test_slurm import LINE, flat

pytestmark = [
    long,
    pytest.mark.skipif(importlib.util.find_spec("clew.bench.scale") is None, reason="no clew bench scale here yet"),
]
__all__ = ["flat"]


def test_every_size_is_a_job(site: Cluster, flat: Dataset) -> None:
    words = ("bench", "scale", LINE, "--dataset", str(flat.path), "--workers", "1,2", "--epochs", "2", "--threads", "1")
    done(*words, "--set", "train.batch_size=60", "--on", "here", "--output", "scaling")
    told = json.loads(Path("scaling/scale.json").read_text())
    assert [row["workers"] for row in told["sizes"]] == [1, 2]
    assert all(row["events_per_second"] > 0 for row in told["sizes"])
    jobs = site.call("squeue", "-h", "--states=all", "-o", "%j").split()
    assert {"clew-scale-1", "clew-scale-2"} <= set(jobs)
