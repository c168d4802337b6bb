"""Studies on real Slurm: one job per trial, jobs that pull trials, or one job of many ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Dataset
from clew.core.config import to_yaml
from clew.tuning.study import Study
from tests.cli import done
from tests.sites import long
from tests.sites.cluster import Cluster
from tests.tuning import template
from tests.tuning.conftest import flat

__all__ = ["flat"]


@pytest.fixture
def study(site: Cluster, flat: Dataset, tmp_path: Path) -> Path:
    """The settings of a study of six trials, three at a time."""
    path = tmp_path / "my.yaml"
    path.write_text(to_yaml(template(flat, tune={"trials": 6, "parallel": 3}, train={"epochs": 1}).data))
    return path


def complete(path: str) -> list[str]:
    return [each.state for each in Study.open(path).trials()]


def test_every_trial_is_a_job(site: Cluster, study: Path) -> None:
    output = done("tune", "run", str(study), "--output", "studies/six", "--on", "here")
    assert "trial   5 complete" in output
    assert complete("studies/six") == ["complete"] * 6
    jobs = list(Path("studies/six/jobs").glob("*/job.sh"))
    assert len(jobs) == 6 and all("--no-requeue" in job.read_text() for job in jobs)


@long
def test_the_jobs_of_an_array_pull_trials(site: Cluster, study: Path) -> None:
    output = done("tune", "run", str(study), "--output", "studies/array", "--on", "here", "--as", "array", "--follow")
    assert "finished: studies/array" in output
    assert complete("studies/array") == ["complete"] * 6


@long
def test_one_job_of_many_ranks_does_all(site: Cluster, study: Path) -> None:
    words = ("--output", "studies/block", "--on", "here", "--as", "block", "--nodes", "2", "--follow")
    assert "finished: studies/block" in done("tune", "run", str(study), *words)
    assert complete("studies/block") == ["complete"] * 6
