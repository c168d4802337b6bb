"""Jobs that are measured: started on this machine, watched, and never left behind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from clew.core.log_tail import last_message
from clew.jobs.launchers.launcher import END_STATES, LaunchedJob, Launcher, find_launcher
from clew.jobs.launchers.ranks import RanksLauncher

_PAUSE = 0.2
_HERE = ("local", "warm", "ranks")
"""Launchers whose jobs are named by the processes that lead their groups."""


def run_job(
    launcher: Launcher, start: Callable[[], LaunchedJob], told: Callable[[float, str], None]
) -> tuple[LaunchedJob, str]:
    """Start a job, and wait for how it ends; it is ended with the study."""
    job, begun = None, time.monotonic()
    try:
        with _later():
            job = start()
        with killed_with_parent([job]):
            while (state := launcher.state(job)) not in END_STATES:
                told(time.monotonic() - begun, state)
                time.sleep(_PAUSE)
    except BaseException:
        if job is not None:
            stop_job(launcher, job)
        raise
    return job, state


@contextlib.contextmanager
def _later() -> Iterator[None]:
    """A Ctrl-C is heard at the end of the block: between two ranks, the first would be left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def killed_with_parent(jobs: Sequence[LaunchedJob]) -> Iterator[None]:
    """Jobs of this machine, which outlive who started them, end within the block also when this process is killed."""
    own = [name for job in jobs if job.launcher in _HERE for name in job.id.split(",")]
    groups = " ".join(f"-{name.partition(':')[0]}" for name in own)
    script = f"read said || kill -KILL {groups}" if own else "read said"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        finally:
            guard.communicate(b"over\n")


def stop_job(launcher: Launcher, job: LaunchedJob) -> None:
    """Ask a job to end, and make it after a while."""
    with contextlib.suppress(KeyboardInterrupt):
        launcher.stop(job)
        end = time.monotonic() + 5
        while launcher.state(job) not in END_STATES and time.monotonic() < end:
            time.sleep(_PAUSE)
    launcher.kill(job)


def local_launcher(processes: int) -> Launcher:
    """What starts jobs of so many processes on this machine."""
    return find_launcher("warm") if processes == 1 else RanksLauncher(processes)


def last_log_line(job: LaunchedJob) -> str:
    """The last that a job said, of its first rank if it has several; an error before all else."""
    logs = [job.log, *sorted(Path(job.folder).glob("rank-*/log.txt"))]
    return last_message(*logs, errors_first=True, default="")
