"""A scaling study whose sizes are jobs of Slurm's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli import clew
from tests.sites import long
from tests.sites.cluster import Cluster
from tests.train import RECIPES
from tests.train.conftest import flat_dataset


@long
@pytest.mark.timeout(240)
def test_sizes_are_jobs_of_a_site(site: Cluster, tmp_path: Path) -> None:
    data = flat_dataset(tmp_path / "flat")
    words = ("--workers", "1,2", "--epochs", "2", "--threads", "1", "--set", "train.batch_size=20", "--on", "here")
    recipe, output = str(RECIPES / "line.py"), tmp_path / "scaling"
    outcome = clew("bench", "scale", recipe, "--dataset", data.path, *words, "--output", output)
    assert outcome.code == 0, outcome.err
    found = json.loads((output / "scale.json").read_text())
    assert [(row["workers"], row["oversubscribed"]) for row in found["sizes"]] == [(1, False), (2, False)]
    assert found["conditions"]["where"] == "here" and found["forecasts"]["allreduce"]["fitted_on"] == [1, 2]
