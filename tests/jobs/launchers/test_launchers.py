"""The contract of launchers, over those that start processes on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from clew.jobs.launchers.launcher import LaunchedJob, Launcher, Slot, find_launcher, watch
from clew.jobs.launchers.ranks import RanksLauncher
from clew.jobs.task import command_task

CORE = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
SLEEPS = """
import os, time
from clew import Recipe
time.sleep(60)
"""


@pytest.fixture(params=["local", "warm", "ranks"])
def launcher(request: pytest.FixtureRequest) -> Launcher:
    return RanksLauncher(2) if request.param == "ranks" else find_launcher(request.param)


def _log(job: LaunchedJob) -> str:
    return "".join(path.read_text() for path in sorted(Path(job.folder).glob("**/log.txt")))


def test_a_job_ends_and_leaves_its_output(launcher: Launcher, tmp_path: Path) -> None:
    job = launcher.start(command_task(["--version"]), folder=tmp_path / "job", slot=Slot((CORE,)))
    assert list(watch(launcher, job))[-1] == "finished"
    assert _log(job).startswith("clew ")


def test_a_job_that_fails_is_seen(launcher: Launcher, tmp_path: Path) -> None:
    job = launcher.start(command_task(["config", "show", "nothing"]), folder=tmp_path / "job")
    assert list(watch(launcher, job))[-1] == "failed"
    assert "no recipe 'nothing'" in _log(job)


def test_a_job_stays_on_its_cores_and_can_be_killed(launcher: Launcher, tmp_path: Path) -> None:
    recipe = tmp_path / "sleeps.py"
    recipe.write_text(SLEEPS)
    job = launcher.start(command_task(["config", "show", str(recipe)]), folder=tmp_path / "job", slot=Slot((CORE,)))
    keepers = [psutil.Process(int(each.partition(":")[0])) for each in job.id.split(",")]
    end = time.monotonic() + 60
    while time.monotonic() < end and not all(keeper.children() for keeper in keepers):
        time.sleep(0.05)
    family = [child for keeper in keepers for child in keeper.children(recursive=True)]
    while time.monotonic() < end and any(child.cpu_affinity() != [CORE] for child in family):
        time.sleep(0.05)
    assert family and all(child.cpu_affinity() == [CORE] for child in family)
    assert launcher.state(job) == "running"
    launcher.kill(job)
    assert list(watch(launcher, job))[-1] in ("lost", "failed")
    psutil.wait_procs(family, timeout=10)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in family)
    launcher.kill(job)
