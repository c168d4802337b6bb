"""The process that stands over a job: starts it once, keeps it to its limits, writes down how it ended.

It needs nobody: the agent may die and come back. `python -m clew.jobs.supervisor FOLDER` does what `task.json`
there says; its own name goes to `keeper`, the end to `end.json`, what the job prints to `log.txt`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil

from clew.core.files import write_text
from clew.jobs.launchers.local import bind, named

MARK = "CLEW_JOB"
"""In the environment of every process of a job, however far it has wandered."""
GRACE = 30.0
"""Seconds between being asked to stop and being made to."""
_PAUSE = 0.1
_LOOK = 1.0
"""Seconds between two looks at memory."""
_CLEARING = 10.0
"""Seconds given to what a job leaves: what the kernel does not let die is left."""
_BECOMING = 0.02


@dataclass(frozen=True)
class ProcessSpec:
    """A command, where it runs, and what it may use."""

    command: tuple[str, ...]
    folder: str
    """The working folder."""
    mark: str
    """Of this attempt, and of nothing else."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of the agent's own."""
    cores: tuple[int, ...] = ()
    wall: float | None = None
    """Seconds."""
    memory: int | None = None
    """Bytes, of all its processes together."""
    grace: float = GRACE
    cpus: int = 1
    """This and the next are for a scheduler, which finds the place: altogether."""
    gpus: int = 0
    nodes: int = 1
    ranks: int = 1
    """Processes that are started together; of one, it starts its own."""

    def write(self, file: Path) -> None:
        """For the owner alone: a token is in it."""
        hidden = file.with_name(f".{file.name}")
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            json.dump(dataclasses.asdict(self), stream)
        hidden.replace(file)

    @classmethod
    def read(cls, file: Path) -> ProcessSpec:
        """What `write` wrote."""
        told = json.loads(file.read_text())
        return cls(**{**told, "command": tuple(told["command"]), "cores": tuple(told["cores"])})


@dataclass(frozen=True)
class JobEnd:
    """How a job ended."""

    code: int
    """Its exit code; negative: the signal that ended it."""
    reason: str = ""
    """Why it was ended, where it did not end by itself."""
    began: float = 0.0
    ended: float = 0.0
    memory: int = 0
    """The most bytes that were seen in use."""


def task_file(folder: Path) -> Path:
    """What is to be done."""
    return folder / "task.json"


def keeper_file(folder: Path) -> Path:
    """Who does it: there from the first moment on, and never twice."""
    return folder / "keeper"


def end_file(folder: Path) -> Path:
    """How it ended."""
    return folder / "end.json"


def log_file(folder: Path) -> Path:
    """What it printed."""
    return folder / "log.txt"


def main() -> None:
    """Be the keeper, unless another is."""
    keep(Path(sys.argv[1]), named(os.getpid()))


def keep(folder: Path, name: str) -> None:
    """Be the keeper, known by this name, unless another is."""
    if _claimed(folder, name):
        task = ProcessSpec.read(task_file(folder))
        end = Supervisor(task, folder).run()
        if folder.is_dir():
            write_text(end_file(folder), json.dumps(dataclasses.asdict(end)))


def _claimed(folder: Path, name: str) -> bool:
    """Whether the job is this process's: one link is made, whoever tries."""
    own = folder / f".keeper-{name}"
    own.write_text(name)
    try:
        os.link(own, keeper_file(folder))
    except FileExistsError:
        return False
    finally:
        own.unlink()
    return True


class Supervisor:
    """Runs a task to its end."""

    def __init__(self, task: ProcessSpec, folder: Path) -> None:
        self._task, self._folder = task, folder
        self._asked = False
        self._reason = ""
        self._most = 0
        self._deadline: float | None = None
        """When it is killed."""

    def run(self) -> JobEnd:
        """Start it, watch it, clear away what it leaves."""
        task, began = self._task, time.time()
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._ask)
        bind(task.cores)
        try:
            child = subprocess.Popen(
                task.command,
                cwd=task.folder,
                env={**os.environ, **task.environment, MARK: task.mark},
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            return JobEnd(127, f"cannot be started: {error}", began, time.time())
        code = self._watch(child, began)
        clear(task.mark)
        return JobEnd(code, self._reason or _signalled(code), began, time.time(), self._most)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True

    def _watch(self, child: subprocess.Popen[bytes], began: float) -> int:
        looked = 0.0
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(_PAUSE)
            now = time.time()
            if self._asked and self._deadline is None:
                self._stop(child)
            if self._task.wall is not None and now - began > self._task.wall and self._deadline is None:
                self._reason = f"its wall time of {self._task.wall:g} s is over"
                self._stop(child)
            if now - looked > _LOOK:
                looked = now
                self._weigh()
                if not keeper_file(self._folder).exists():  # nobody could be told of it
                    self._reason, self._deadline = "its folder is gone", 0.0
            if self._deadline is not None and time.monotonic() > self._deadline:
                clear(self._task.mark)

    def _stop(self, child: subprocess.Popen[bytes]) -> None:
        self._deadline = time.monotonic() + self._task.grace
        child.terminate()

    def _weigh(self) -> None:
        limit, family = self._task.memory, psutil.Process().children(recursive=True)
        used = _used(family, exactly=False)
        if limit is not None and used > limit:
            used = _used(family, exactly=True)  # what several share was counted for each
            if used > limit:
                self._reason = f"it used {used / 1e9:.2f} GB of memory, {limit / 1e9:.2f} GB were asked for"
                self._deadline = 0.0
        self._most = max(self._most, used)


def _used(family: list[psutil.Process], *, exactly: bool) -> int:
    total = 0
    for each in family:
        with contextlib.suppress(psutil.Error):
            total += int(getattr(each.memory_full_info(), "pss", 0)) if exactly else 0
            total += 0 if exactly else each.memory_info().rss
    return total


def everyone(mark: str) -> Iterator[psutil.Process]:
    """The processes of an attempt other than this one, also those that left its group and its session."""
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if each.pid != os.getpid() and each.environ().get(MARK) == mark:
                yield each


def clear(mark: str) -> None:
    """Kill them all, and those they started meanwhile; who is becoming another process shows no mark for a moment."""
    until, looks = time.monotonic() + _CLEARING, 0
    while looks < 2 and time.monotonic() < until:
        found = list(everyone(mark))
        looks = 0 if found else looks + 1
        for each in found:
            with contextlib.suppress(psutil.Error):
                each.kill()
        time.sleep(_BECOMING)


def _signalled(code: int) -> str:
    return f"killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else ""


if __name__ == "__main__":
    main()
