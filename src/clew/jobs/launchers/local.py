"""Commands on this machine that outlive the terminal they were started from."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil

from clew.core.files import write_text
from clew.core.process import running_process
from clew.errors import RunError
from clew.jobs.launchers.launcher import JobState, LaunchedJob, Slot

_CLEW = "from clew.cli.main import run; run()"
_ENDS: dict[str, JobState] = {"0": "finished", "75": "stopped"}
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_keepers: list[subprocess.Popen[bytes]] = []
"""Those this process started: Python complains of a process object that goes before its process does."""


class LocalLauncher:
    """A process in a session of its own, under a keeper that writes down how it ended."""

    def start(self, arguments: Sequence[str], *, folder: Path, room: Slot | None = None) -> LaunchedJob:
        here = room or Slot()
        try:
            folder.mkdir(parents=True)
            with (folder / "log.txt").open("wb") as log:
                keeper = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(exit_file(folder)), json.dumps(here.cores), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, **visible(here)},
                )
        except OSError as error:
            raise RunError(f"{folder}: cannot start a job there ({error})") from error
        _keepers.append(keeper)
        return LaunchedJob("local", named(keeper.pid), str(folder))

    def state(self, job: LaunchedJob) -> JobState:
        file = exit_file(Path(job.folder))
        if file.exists():
            return _ENDS.get(file.read_text().strip(), "failed")
        if named_process(job.id) is not None:
            return "running"
        return _ENDS.get(file.read_text().strip(), "failed") if file.exists() else "lost"

    def stop(self, job: LaunchedJob) -> None:
        keeper = _keeper(job)
        if keeper is not None:
            keeper.terminate()

    def kill(self, job: LaunchedJob) -> None:
        keeper = _keeper(job)
        if keeper is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(keeper.pid, signal.SIGKILL)


def _keeper(job: LaunchedJob) -> psutil.Process | None:
    """Who keeps a job, while it runs: then it may keep another."""
    return None if exit_file(Path(job.folder)).exists() else named_process(job.id)


def exit_file(folder: Path) -> Path:
    """Where the keeper of a job writes its exit code."""
    return folder / "exit"


def ended_as(folder: Path) -> JobState | None:
    """How a job ended, by the exit codes its folder has: one, or one for each of its array; None without any."""
    codes = {file.read_text().strip() for file in (*folder.glob("exit"), *folder.glob("exit-*"))}
    states = {_ENDS.get(code, "failed") for code in codes if code}
    return next((state for state in ("failed", "stopped", "finished") if state in states), None)


def visible(room: Slot) -> Mapping[str, str]:
    """What an environment says of devices."""
    return {} if room.devices is None else dict.fromkeys(_VISIBLE, ",".join(map(str, room.devices)))


def named(pid: int) -> str:
    """A process that no later one can be taken for."""
    try:
        return f"{pid}:{psutil.Process(pid).create_time()}"
    except psutil.NoSuchProcess:  # it has ended already
        return f"{pid}:0"


def bind(cores: Sequence[int]) -> None:
    """Keep this process, and those it starts, on some cores."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def pass_on(child: int) -> None:
    """Whoever asks this process to stop, asks the child."""

    def tell(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, tell)


def named_process(name: str) -> psutil.Process | None:
    """The process that `named` named, while it lives."""
    pid, _, created = name.partition(":")
    return running_process(int(pid), created=float(created))


def main() -> None:
    """The keeper: run the command, pass on what it is told, write down its exit code."""
    file, cores, *arguments = sys.argv[1:]
    bind(json.loads(cores))
    child = subprocess.Popen([sys.executable, "-c", _CLEW, *arguments])
    pass_on(child.pid)
    write_text(Path(file), str(child.wait()))


if __name__ == "__main__":
    main()
