"""Commands on this machine that outlive the terminal they were started from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import psutil

from clew.errors import RunError
from clew.files import write_text
from clew.launch.launcher import Job, State

_CLEW = "from clew.cli.main import run; run()"
_ENDS: dict[str, State] = {"0": "finished", "75": "stopped"}
_keepers: list[subprocess.Popen[bytes]] = []
"""Those this process started: Python complains of a process object that goes before its process does."""


class Detached:
    """A process in a session of its own, under a keeper that writes down how it ended."""

    def start(self, arguments: Sequence[str], *, folder: Path) -> Job:
        try:
            folder.mkdir(parents=True)
            with (folder / "log.txt").open("wb") as log:
                keeper = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(_exit_file(folder)), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise RunError(f"{folder}: cannot start a job there ({error})") from error
        _keepers.append(keeper)
        return Job("local", f"{keeper.pid}:{psutil.Process(keeper.pid).create_time()}", str(folder))

    def state(self, job: Job) -> State:
        file = _exit_file(Path(job.folder))
        if file.exists():
            return _ENDS.get(file.read_text().strip(), "failed")
        if _keeper(job) is not None:
            return "running"
        return _ENDS.get(file.read_text().strip(), "failed") if file.exists() else "lost"

    def stop(self, job: Job) -> None:
        keeper = _keeper(job)
        if keeper is not None:
            keeper.terminate()


def _exit_file(folder: Path) -> Path:
    return folder / "exit"


def _keeper(job: Job) -> psutil.Process | None:
    pid, _, created = job.id.partition(":")
    try:
        found = psutil.Process(int(pid))
        alive = abs(found.create_time() - float(created)) < 1 and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return found if alive else None


def main() -> None:
    """The keeper: run the command, pass on what it is told, write down its exit code."""
    file, *arguments = sys.argv[1:]
    child = subprocess.Popen([sys.executable, "-c", _CLEW, *arguments])

    def tell(number: int, frame: FrameType | None) -> None:
        if child.poll() is None:
            os.kill(child.pid, number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, tell)
    write_text(Path(file), str(child.wait()))


if __name__ == "__main__":
    main()
