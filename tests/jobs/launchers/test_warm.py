"""A process whose job succeeded does the next one; a process with a failed job or with leftovers does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from clew.jobs.launchers import warm
from clew.jobs.launchers.launcher import LaunchedJob, Slot, watch
from clew.jobs.launchers.warm import WarmLauncher
from clew.jobs.task import command_task

pytestmark = pytest.mark.timeout(120)

LAUNCHER = WarmLauncher(again=True)
CHANGES = {
    "pass": "",
    "torch.rand(3), numpy.random.rand(3), random.random()": "",
    "torch.set_num_threads(1)": "",
    "os.environ['MINE'] = '1'": "environment",
    "os.chdir('/')": "working folder",
    "sys.path.append('here')": "sys.path",
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()": "threads",
    "subprocess.Popen(['sleep', '1'])": "processes",
    "signal.signal(signal.SIGUSR2, signal.SIG_IGN)": "signals",
    "atexit.register(print)": "exit functions",
    "logging.basicConfig(level=1)": "loggers",
    "warnings.simplefilter('error')": "warnings",
    "socket.setdefaulttimeout(3)": "interpreter",
    "numpy.seterr(all='raise')": "numpy",
    "torch.set_default_dtype(torch.float64)": "torch",
    "torch.set_float32_matmul_precision('medium')": "torch",
    "torch.backends.cudnn.benchmark = True": "torch",
    "sys.kept = numpy.ones(1 << 26)": "memory",
    "sys.kept = [open(os.devnull) for _ in range(50)]": "files",
    "mine.COUNT += 1": "code",
    "mine.SEEN.append(1)": "code",
    "mine.RANDOM.random()": "code",
    "mine.Mine.steps = 3": "code",
    "mine.kept()": "code",
}
"""Changes that a job may make, and the leftovers that are then reported."""
CODE = """
import numpy
COUNT, SEEN, RANDOM = 0, [], numpy.random.default_rng(1)
class Mine:
    steps = 0
def kept(seen=[]):
    seen.append(1)
"""
LOOK = """
import atexit, logging, os, pathlib, random, signal, socket, subprocess, sys, threading, time, warnings
import numpy, torch
import mine
from clew.jobs.leak_check import LeakCheck
for change in {changes!r}:
    if os.fork() == 0:
        found = LeakCheck([pathlib.Path(mine.__file__).parent])
        found.reset_random_numbers(), found.leak()
        exec(change)
        print(found.leak(), flush=True)
        os._exit(0)
    os.wait()
"""
WAITS = """
import time
from pathlib import Path
from clew.jobs.launchers.launcher import watch
from clew.jobs.launchers.warm import WarmLauncher
from clew.jobs.task import command_task
again = WarmLauncher(again=True)
job = again.start(command_task(["--version"]), folder=Path({folder!r}))
print(list(watch(again, job))[-1], job.id, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def idle() -> Iterator[None]:
    yield
    warm.release_idle_processes()


def ended(arguments: list[str], folder: Path) -> tuple[LaunchedJob, str]:
    job = LAUNCHER.start(command_task(arguments), folder=folder, slot=Slot())
    return job, list(watch(LAUNCHER, job, pause=0.01))[-1]


def test_a_process_does_one_job_after_the_other(tmp_path: Path) -> None:
    first, _ = ended(["--version"], tmp_path / "1")
    second, state = ended(["--version"], tmp_path / "2")
    assert first.id == second.id and state == "finished"
    assert [(tmp_path / name / "log.txt").read_text()[:5] for name in ("1", "2")] == ["clew ", "clew "]
    third = WarmLauncher().start(command_task(["--version"]), folder=tmp_path / "3")
    assert third.id != first.id
    assert list(watch(LAUNCHER, third))[-1] == "finished"


def test_a_process_whose_job_failed_is_not_reused(tmp_path: Path) -> None:
    first, state = ended(["config", "show", "nothing"], tmp_path / "1")
    assert state == "failed"
    second, state = ended(["--version"], tmp_path / "2")
    assert first.id != second.id and state == "finished"


@pytest.mark.long
def test_everything_a_job_leaves_behind_is_detected(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-W", "ignore", "-c", LOOK.format(changes=list(CHANGES))]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=100)
    assert dict(zip(CHANGES, done.stdout.splitlines(), strict=True)) == CHANGES, done.stderr


def test_the_end_of_a_job_is_noticed_at_once(tmp_path: Path) -> None:
    ended(["--version"], tmp_path / "1")
    warm.wait_for_job(0.0)
    job = LAUNCHER.start(command_task(["--version"]), folder=tmp_path / "2")
    start = time.monotonic()
    while LAUNCHER.state(job) == "running":
        warm.wait_for_job(30.0)
    assert time.monotonic() - start < 30


def test_stopping_an_ended_job_does_not_stop_the_next(tmp_path: Path) -> None:
    first, _ = ended(["--version"], tmp_path / "1")
    supervisor = psutil.Process(int(first.id.partition(":")[0]))
    LAUNCHER.stop(first)
    LAUNCHER.kill(first)
    second, state = ended(["--version"], tmp_path / "2")
    assert second.id == first.id and state == "finished" and supervisor.is_running()


@pytest.mark.parametrize("member", ["supervisor", "worker"])
def test_a_process_killed_while_idle_is_replaced(tmp_path: Path, member: str) -> None:
    first, _ = ended(["--version"], tmp_path / "1")
    supervisor = psutil.Process(int(first.id.partition(":")[0]))
    family = [supervisor, *supervisor.children()]
    (supervisor if member == "supervisor" else family[1]).kill()
    assert not psutil.wait_procs(family, timeout=30)[1]
    second, state = ended(["--version"], tmp_path / "2")
    assert second.id != first.id and state == "finished"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_idle_processes_end_with_the_process_that_started_them(tmp_path: Path, number: signal.Signals) -> None:
    words = [sys.executable, "-c", WAITS.format(folder=str(tmp_path / "1"))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        state, name = process.stdout.readline().split()
        supervisor = psutil.Process(int(name.partition(":")[0]))
        family = [supervisor, *supervisor.children(), *psutil.Process(process.pid).children()]
        assert state == "finished" and len(family) == 3
        process.send_signal(number)
    assert not psutil.wait_procs(family, timeout=30)[1]


def test_idle_processes_end_when_they_are_released(tmp_path: Path) -> None:
    job, _ = ended(["--version"], tmp_path / "1")
    supervisor = psutil.Process(int(job.id.partition(":")[0]))
    family = [supervisor, *supervisor.children()]
    warm.release_idle_processes()
    assert len(family) == 2 and not psutil.wait_procs(family, timeout=30)[1]
