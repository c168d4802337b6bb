"""A scaling study on real Slurm: one job per size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clew import Dataset
from tests.cli import done
from tests.sites import long
from tests.sites.cluster import Cluster
from tests.sites.test_slurm import LINE, flat

__all__ = ["flat"]


@long
@pytest.mark.timeout(240)
def test_every_size_is_a_job(site: Cluster, flat: Dataset) -> None:
    words = ("bench", "scale", LINE, "--dataset", str(flat.path), "--workers", "1,2", "--epochs", "2", "--threads", "1")
    done(*words, "--set", "train.batch_size=20", "--on", "here", "--output", "scaling")
    result = json.loads(Path("scaling/scale.json").read_text())
    assert [(row["workers"], row["oversubscribed"]) for row in result["sizes"]] == [(1, False), (2, False)]
    assert all(row["events_per_second"] > 0 for row in result["sizes"])
    assert result["conditions"]["where"] == "here" and result["forecasts"]["allreduce"]["fitted_on"] == [1, 2]
    jobs = site.call("squeue", "-h", "--states=all", "-o", "%j").split()
    assert {"clew-scale-1", "clew-scale-2"} <= set(jobs)
