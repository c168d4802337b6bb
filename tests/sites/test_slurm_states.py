"""The states of a job of the server on real Slurm, each with its real cause."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew import Client, Dataset
from clew.core.config import to_yaml
from clew.jobs import supervisor
from clew.jobs.launchers.launcher import LaunchedJob
from clew.jobs.launchers.scheduler import id_file
from clew.jobs.launchers.slurm import SlurmLauncher
from clew.jobs.sites import Site
from clew.jobs.supervisor import JobEnd
from tests.cli import clew
from tests.jobs.agent.conftest import python
from tests.sites import long
from tests.sites.cluster import Cluster
from tests.sites.conftest_service import Login
from tests.sites.conftest_slurm import PROFILE
from tests.sites.test_slurm import flat, train, until
from tests.sites.test_slurm_service import SLEEPS, attempt, state

__all__ = ["flat"]
EATS = "a = b'x' * (500 << 20); import time; time.sleep(60)"


@pytest.fixture
def small(site: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster that stores at most three jobs, and ended ones for two seconds."""
    with Cluster(tmp_path / "small", max_jobs=3, memory=2) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster


@long
def test_a_job_that_takes_more_memory_than_the_site_gives_is_named(
    site: Cluster, ada: Client, login: Login, flat: Dataset
) -> None:
    Path("sites/here.yaml").write_text(to_yaml({**PROFILE, "memory": "100M"}))
    login()
    ended = ada.jobs.wait(python(ada, EATS, requeue=3).id, seconds=90)
    assert (ended.state, ended.reason) == ("failed", "killed because it used more memory than it requested"), ended
    assert ended.attempt == 1
    outcome = clew(*train(flat, "--output", "runs/large", "--on", "here", "--follow"))
    assert outcome.code in (1, 137) and "killed because it used more memory than it requested" in outcome.err, outcome


@long
def test_a_job_that_slurm_forgot_is_lost(small: Cluster, ada: Client, login: Login) -> None:
    agent_process = login()
    job = python(ada, SLEEPS.format(60))
    until(lambda: "started" in "".join(ada.jobs.log(job.id)))
    agent_process.end(9)  # no process checks while it ends and is forgotten
    folder = attempt(agent_process, job.id)
    small.call("scancel", "--batch", "--signal=KILL", id_file(folder).read_text())
    until(lambda: not small.call("squeue", "-h", "--states=all").strip())
    assert not supervisor.end_file(folder).exists()
    agent_process.start()
    ended = ada.jobs.wait(job.id, seconds=60)
    assert (ended.state, ended.reason) == ("lost", "Slurm does not know it any more, and it left no record of its end")


@long
def test_a_queue_that_is_full_is_named_and_waited_for(small: Cluster, ada: Client, login: Login) -> None:
    for _ in range(2):
        small.call("sbatch", "--hold", "--wrap", "true")
    agent_process = login()
    job = python(ada, SLEEPS.format(1))
    until(lambda: "the queue is full" in state(ada, job.id)[1])
    assert state(ada, job.id)[0] == "claimed" and not id_file(attempt(agent_process, job.id)).exists()
    small.call("scancel", "--user=root")
    ended = ada.jobs.wait(job.id, seconds=60)
    assert (ended.state, ended.attempt) == ("done", 1), ended


def test_a_part_that_the_kernel_killed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only cgroups bring a job to this state, and they are not available here: the output of squeue is simulated."""
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text("#!/bin/sh\necho '7|OUT_OF_MEMORY|OutOfMemory|n1'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    supervisor.supervisor_file(tmp_path).write_text("7")
    supervisor.end_file(tmp_path).write_text(json.dumps({"code": -9, "reason": "killed by signal 9 (Killed)"}))
    supervisor.process_file(tmp_path).touch()
    launcher = SlurmLauncher(Site(name="here", scheduler="slurm", poll_seconds=0.1))
    job = LaunchedJob("slurm", "7", str(tmp_path))
    time.sleep(0.2)  # longer than poll_seconds: what an earlier test read from squeue is too old now
    assert launcher.state(job) == "lost"
    assert launcher.end(job) == JobEnd(-9, "killed because it used more memory than it requested")
