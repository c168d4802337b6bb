"""Slow tests on real Slurm: the wall time, and node failures. `make test-sites` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Dataset, Run
from tests.cli import clew, done
from tests.sites import long
from tests.sites.cluster import Cluster
from tests.sites.test_slurm import flat, start_count, train, until
from tests.training import weights

pytestmark = long
__all__ = ["flat"]


def same(one: str, other: str) -> bool:
    first, second = weights(Run.open(one)), weights(Run.open(other))
    return first.keys() == second.keys() and all((first[name] == second[name]).all() for name in first)


@pytest.mark.timeout(900)
def test_a_run_that_hits_its_wall_time_twice_ends_with_the_same_weights(site: Cluster, flat: Dataset) -> None:
    slow = ("--set", "slow=0.5", "--workers", "2", "--output", "runs/parts", "--on", "here", "--nodes", "2")
    output = done(*train(flat, *slow, "--wall-time", "1m", "--follow", epochs=50))
    assert "it was requeued" in output and "finished: runs/parts" in output
    assert start_count(Run.open("runs/parts")) >= 2
    done(*train(flat, "--workers", "2", "--output", "runs/whole", epochs=50))
    assert same("runs/parts", "runs/whole")


@pytest.mark.timeout(600)
def test_a_run_resumes_by_itself_after_a_node_failure(site: Cluster, flat: Dataset) -> None:
    slow = ("--set", "slow=0.1", "--workers", "2", "--output", "runs/died", "--on", "here", "--nodes", "2")
    done(*train(flat, *slow, "--no-follow", epochs=60))
    run = Run(Path("runs/died"))
    until(lambda: run.config_file.exists() and len(list(run.records(kind="checkpoint"))) >= 2)
    site.kill("n2")
    try:
        assert "finished: runs/died" in done("follow", "runs/died")
    finally:
        site.start("n2")
        until(lambda: site.call("sinfo", "-h", "-o", "%D %t").strip() == "3 idle")
    assert start_count(run) == 1
    done(*train(flat, "--workers", "2", "--output", "runs/whole", epochs=60))
    assert same("runs/died", "runs/whole")


@pytest.mark.timeout(600)
def test_a_node_failure_is_named_without_requeue(site: Cluster, flat: Dataset) -> None:
    slow = ("--set", "slow=0.1", "--workers", "2", "--output", "runs/died", "--on", "here", "--nodes", "2")
    done(*train(flat, *slow, "--no-requeue", "--no-follow", epochs=900))
    run = Run(Path("runs/died"))
    until(lambda: run.config_file.exists() and bool(list(run.records(kind="validation"))))
    site.kill("n2")
    try:
        outcome = clew("follow", "runs/died")
        assert outcome.code == 1 and "lost: a node failed under it" in outcome.err
    finally:
        site.start("n2")
        until(lambda: site.call("sinfo", "-h", "-o", "%D %t").strip() == "3 idle")


def test_a_full_queue_is_named(tmp_path: Path, flat: Dataset, site: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(tmp_path / "small", max_jobs=3) as small:
        monkeypatch.setenv("SLURM_CONF", str(small.conf))
        for _ in range(2):
            small.call("sbatch", "--hold", "--wrap", "true")
        outcome = clew(*train(flat, "--on", "here", "--no-follow"))
        assert outcome.code == 2 and "the queue is full" in outcome.err and outcome.err.count("\n") == 1


def test_an_unreachable_controller_is_named_and_nothing_is_lost(
    tmp_path: Path, flat: Dataset, site: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))
    outcome = clew(*train(flat, "--on", "here", "--no-follow"))
    assert outcome.code == 2 and outcome.err.count("\n") == 1 and not list(Path("runs").glob("*/*"))
