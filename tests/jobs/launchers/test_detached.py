"""Detached jobs: started, watched, stopped, resumed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clew import Dataset, Run
from clew.errors import ConfigError
from clew.jobs.launchers.launcher import LaunchedJob, find_launcher, watch
from clew.jobs.task import TrainTask, command_task

CLEW = str(Path(sys.executable).parent / "clew")


def clew(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CLEW, *arguments], capture_output=True, text=True, timeout=100)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_job_is_watched_to_its_end_and_leaves_its_output(tmp_path: Path) -> None:
    local = find_launcher("local")
    job = local.start(command_task(["--version"]), folder=tmp_path / "job")
    assert list(watch(local, job))[-1] == "finished"
    assert job.log.read_text().startswith("clew ")


def test_a_job_that_fails_is_seen(tmp_path: Path) -> None:
    local = find_launcher("local")
    job = local.start(TrainTask(recipe="nothing"), folder=tmp_path / "job")
    assert list(watch(local, job))[-1] == "failed"
    assert "no recipe 'nothing'" in job.log.read_text()


def test_a_job_without_its_supervisor_is_lost(tmp_path: Path) -> None:
    assert find_launcher("local").state(LaunchedJob("local", "999999:1.0", str(tmp_path))) == "lost"


def test_a_launcher_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="no launcher 'locol'; did you mean 'local'"):
        find_launcher("locol")


@pytest.mark.long
def test_a_detached_run_is_stopped_and_resumed(dataset: Dataset, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    options = ["--epochs", "2000", "--set", "model.hidden=8", "--set", "train.threads=1", "--output", str(run.path)]
    started = clew("train", "tracking", "--dataset", str(dataset.path), *options, "--detach")
    assert started.returncode == 0, started.stderr
    assert "runs in the background" in started.stdout
    until(lambda: run.last("step") is not None)
    assert clew("runs", "list", str(tmp_path)).stdout.count("running") == 1
    stopped = clew("stop", str(run.path))
    assert stopped.returncode == 0 and "stopped" in stopped.stdout, stopped.stderr
    assert clew("stop", str(run.path)).returncode == 2
    assert clew("train", "--resume", str(run.path), "--detach").returncode == 0
    assert run.state == "running"
    assert clew("stop", str(run.path)).returncode == 0
    assert run.last("resume") is not None


def test_a_detached_run_that_cannot_start_says_why(tmp_path: Path) -> None:
    done = clew("train", "tracking", "--dataset", str(tmp_path / "no"), "--output", str(tmp_path / "run"), "--detach")
    assert done.returncode == 2
    assert "the job did not start:" in done.stderr and "no dataset there" in done.stderr
