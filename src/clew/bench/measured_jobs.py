"""Start measured jobs, wait for them, and end them together with this process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from clew.core.log_tail import last_message
from clew.jobs.launchers.launcher import END_STATES, LOCAL_LAUNCHERS, LaunchedJob, Launcher, find_launcher
from clew.jobs.launchers.ranks import RanksLauncher

_POLL_SECONDS = 0.2


def run_job(
    launcher: Launcher, start: Callable[[], LaunchedJob], on_progress: Callable[[float, str], None]
) -> tuple[LaunchedJob, str]:
    """Start a job and wait until it ends. It is stopped if this process fails.

    Args:
        launcher: The launcher of the job.
        start: Starts the job.
        on_progress: Called with the elapsed seconds and the state.

    Returns:
        The job and its final state.
    """
    job, started = None, time.monotonic()
    try:
        with _delayed_interrupt():
            job = start()
        with killed_with_parent([job]):
            while (state := launcher.state(job)) not in END_STATES:
                on_progress(time.monotonic() - started, state)
                time.sleep(_POLL_SECONDS)
    except BaseException:
        if job is not None:
            stop_job(launcher, job)
        raise
    return job, state


@contextlib.contextmanager
def _delayed_interrupt() -> Iterator[None]:
    """Delay Ctrl-C until the block ends: between the starts of two ranks, the first one would keep running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if signals:
        raise KeyboardInterrupt


@contextlib.contextmanager
def killed_with_parent(jobs: Sequence[LaunchedJob]) -> Iterator[None]:
    """Kill the jobs of this machine if this process is killed within the block. Otherwise they would keep running."""
    names = [name for job in jobs if job.launcher in LOCAL_LAUNCHERS for name in job.id.split(",")]
    groups = " ".join(f"-{name.partition(':')[0]}" for name in names)
    script = f"read line || kill -KILL {groups}" if names else "read line"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        finally:
            guard.communicate(b"over\n")


def stop_job(launcher: Launcher, job: LaunchedJob) -> None:
    """Stop a job, and kill it if it does not end within five seconds."""
    with contextlib.suppress(KeyboardInterrupt):
        launcher.stop(job)
        deadline = time.monotonic() + 5
        while launcher.state(job) not in END_STATES and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    launcher.kill(job)


def local_launcher(processes: int) -> Launcher:
    """Return the launcher for jobs of this many processes on this machine."""
    return find_launcher("warm") if processes == 1 else RanksLauncher(processes)


def last_log_line(job: LaunchedJob) -> str:
    """Return the last line that a job printed, of the first rank if it has several; an error line if there is one."""
    logs = [job.log, *sorted(Path(job.folder).glob("rank-*/log.txt"))]
    return last_message(*logs, errors_first=True, default="")
