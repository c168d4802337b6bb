"""Who carries out a job: this machine's own processes, or a site's scheduler behind the same four calls."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from clew.errors import RunError
from clew.jobs import supervisor
from clew.jobs.launchers.local import named_process
from clew.jobs.supervisor import JobEnd, ProcessSpec

State: TypeAlias = Literal["waiting", "queued", "running", "ended", "lost"]
"""`queued`: a scheduler has it, for as long as it takes; `lost`: begun, and gone without a word."""
_children: list[subprocess.Popen[bytes]] = []
"""Keepers of this process, to be reaped."""


@atexit.register
def _let_go() -> None:
    for each in _children:
        if each.poll() is None:
            each.returncode = 0  # it goes on; Python would complain of having left it


@dataclass(frozen=True)
class Status:
    """How a job is."""

    state: State
    end: JobEnd | None = None
    """Where it has ended."""
    reason: str = ""
    """Why it is queued, or lost."""


class Runner(Protocol):
    """Starts tasks and looks after them. It holds nothing between calls: a handle, which is text, says all.

    An agent that was killed calls `start` again for a folder it may have called it for before, and `poll` with handles
    that an earlier process got. A folder's task must begin once, whatever happens.
    """

    here: bool
    """Whether tasks run on this machine, which has cores and devices set aside for them."""

    def start(self, task: ProcessSpec, folder: Path) -> str:
        """Begin a task, unless this folder's was begun before; its log goes to `log.txt` there. Returns its handle.

        Raises:
            RunError: it cannot be started.
        """

    def poll(self, handle: str) -> Status:
        """How it is now."""

    def cancel(self, handle: str) -> None:
        """Ask it to end, and make it after the task's grace. Nothing happens where it was asked or has ended; where it
        has not begun it may not hear."""

    def kill(self, handle: str) -> None:
        """End it and all its processes now."""


class Local:
    """Processes on this machine, each job under a keeper in a session of its own. A handle is the folder."""

    here = True

    def start(self, task: ProcessSpec, folder: Path) -> str:
        try:
            if not supervisor.keeper_file(folder).exists():
                folder.mkdir(parents=True, exist_ok=True)
                task.write(supervisor.task_file(folder))
                self._spawn(folder)
        except OSError as error:
            raise RunError(f"{folder}: cannot start a job there ({error})") from error
        return str(folder)

    def poll(self, handle: str) -> Status:
        folder = Path(handle)
        name = supervisor.keeper_file(folder)
        begun = name.exists()
        alive = begun and named_process(name.read_text()) is not None
        if supervisor.end_file(folder).exists():  # looked for after the keeper, which writes it and goes
            return Status("ended", JobEnd(**json.loads(supervisor.end_file(folder).read_text())))
        if alive:
            return Status("running")
        return Status("lost" if begun else "waiting")

    def cancel(self, handle: str) -> None:
        name = supervisor.keeper_file(Path(handle))
        process = named_process(name.read_text()) if name.exists() else None
        if process is not None:
            process.terminate()

    def kill(self, handle: str) -> None:
        folder = Path(handle)
        name = supervisor.keeper_file(folder)
        process = named_process(name.read_text()) if name.exists() else None
        if process is not None:
            process.kill()
        if supervisor.task_file(folder).exists():
            supervisor.clear(ProcessSpec.read(supervisor.task_file(folder)).mark)

    def _spawn(self, folder: Path) -> None:
        _children[:] = [each for each in _children if each.poll() is None]
        with supervisor.log_file(folder).open("ab") as log:
            _children.append(
                subprocess.Popen(
                    [sys.executable, "-m", supervisor.__name__, str(folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={name: each for name, each in os.environ.items() if name != "CLEW_TOKEN"},  # the agent's own
                )
            )
