"""The process that supervises a job: it starts the job once, enforces its limits and records how it ended.

A supervisor needs no other process: the process that started it may end. `python -m clew.jobs.supervisor FOLDER`
runs what `process.json` in the folder says. Its own name goes to `supervisor`, the end to `end.json`, the job's output
to `log.txt`. Commands in the background, jobs of agents and jobs of batch systems use it. Jobs of the warm server are
forked, so they have a supervisor of their own (`clew.jobs.launchers.warm_server`) that writes the same files.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import psutil

from clew.core.files import write_text
from clew.core.process import running_process

MARK = "CLEW_JOB"
"""An environment variable of every process of a job. It names the job and those around it, separated by colons."""
GRACE = 30.0
"""Seconds between a request to stop and a kill."""
STOPPED = 75
"""The exit code of a job that can be resumed."""
CANCELLED = -int(signal.SIGTERM)
"""The code of a job that was cancelled before it could end by itself."""
_PAUSE = 0.1
_MEMORY_PAUSE = 1.0
"""Seconds between two measurements of memory."""
_CLEARING = 10.0
"""Seconds for killing what a job leaves behind. A process that the kernel does not let die is given up after that."""
_EXEC_PAUSE = 0.02
"""Seconds between two looks for marked processes: a process shows no mark for a moment during exec."""


@dataclass(frozen=True)
class ProcessSpec:
    """A command, its surroundings and its limits."""

    command: tuple[str, ...]
    working_folder: str
    mark: str
    """A text that no other job has."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables on top of the supervisor's own."""
    cores: tuple[int, ...] = ()
    """Numbers of the cores it is bound to; empty: all."""
    wall_time: float | None = None
    """Seconds."""
    memory: int | None = None
    """Bytes, of all its processes together."""
    grace: float | None = GRACE
    """Seconds between a request to stop and a kill; None: it is not killed."""
    detached: bool = False
    """Whether its processes are no children of the command, as in a container of Podman. Their mark identifies them."""

    def write(self, folder: Path) -> None:
        """Write it into the job's folder, readable by its owner only: a token may be in it."""
        file = process_file(folder)
        hidden = file.with_name(f".{file.name}")
        descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            json.dump(dataclasses.asdict(self), stream)
        hidden.replace(file)

    @classmethod
    def read(cls, folder: Path) -> ProcessSpec:
        """Read what `write` wrote."""
        data = json.loads(process_file(folder).read_text())
        return cls(**{**data, "command": tuple(data["command"]), "cores": tuple(data["cores"])})


@dataclass(frozen=True)
class JobEnd:
    """How a job ended."""

    code: int
    """Its exit code; a negative number is the signal that ended it."""
    reason: str = ""
    """Why it was ended, if it did not end by itself."""
    started: float = 0.0
    """Times in seconds since 1970."""
    ended: float = 0.0
    memory: int = 0
    """The highest number of bytes measured."""


def process_file(folder: Path) -> Path:
    """What the supervisor runs."""
    return folder / "process.json"


def supervisor_file(folder: Path) -> Path:
    """The name of the supervisor that started the job. It exists from the first moment and is made once."""
    return folder / "supervisor"


def end_file(folder: Path) -> Path:
    """How the job ended."""
    return folder / "end.json"


def stop_file(folder: Path) -> Path:
    """It exists when the job was asked to stop."""
    return folder / "stop"


def log_file(folder: Path) -> Path:
    """What the job printed."""
    return folder / "log.txt"


def write_end(folder: Path, end: JobEnd) -> None:
    """Record how a job ended."""
    write_text(end_file(folder), json.dumps(dataclasses.asdict(end)))


def read_end(folder: Path) -> JobEnd | None:
    """How a job ended; None while there is no record."""
    return _read_end(end_file(folder))


def read_ends(folder: Path) -> list[JobEnd]:
    """The records of a job, or of every job of an array."""
    ends = [_read_end(file) for file in sorted((*folder.glob("end.json"), *folder.glob("end-*.json")))]
    return [end for end in ends if end is not None]


def _read_end(file: Path) -> JobEnd | None:
    try:
        text = file.read_text()
    except FileNotFoundError:
        return None
    return JobEnd(**json.loads(text)) if text.strip() else None


def supervise(folder: Path, name: str) -> None:
    """Supervise the job of a folder under this name, unless another supervisor has started it."""
    if not _claim(folder, name):
        return
    end = Supervisor(ProcessSpec.read(folder), folder).run()
    if folder.is_dir():
        write_end(folder, end)


def _claim(folder: Path, name: str) -> bool:
    """Whether this process is the one that starts the job: only one of all that try can make the link."""
    claim = folder / f".supervisor-{name}"
    claim.write_text(name)
    try:
        os.link(claim, supervisor_file(folder))
    except FileExistsError:
        return False
    finally:
        claim.unlink()
    return True


class Supervisor:
    """Runs a process to its end."""

    def __init__(self, spec: ProcessSpec, folder: Path) -> None:
        self._spec, self._folder = spec, folder
        self._stop_requested = False
        self._reason = ""
        self._peak_memory = 0
        self._kill_at: float | None = None
        """When the job is killed, by the monotonic clock; None before it was asked to stop."""

    def run(self) -> JobEnd:
        """Start the process, watch it and kill what it leaves behind."""
        spec, started = self._spec, time.time()
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._request_stop)
        if stop_file(self._folder).exists():
            return JobEnd(CANCELLED, "stopped before it started", started, time.time())
        bind_to_cores(spec.cores)
        try:
            child = subprocess.Popen(
                spec.command, cwd=spec.working_folder, env=job_environment(spec), stdin=subprocess.DEVNULL
            )
        except OSError as error:
            return JobEnd(127, f"cannot be started: {error}", started, time.time())
        code = self._watch(child, started)
        kill_marked(spec.mark)
        return JobEnd(code, self._reason or _signal_name(code), started, time.time(), self._peak_memory)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_requested = True

    def _watch(self, child: subprocess.Popen[bytes], started: float) -> int:
        measured, wall_time = 0.0, self._spec.wall_time
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(_PAUSE)
            now = time.time()
            if self._stop_requested and self._kill_at is None:
                self._stop(child)
            if wall_time is not None and now - started > wall_time and self._kill_at is None:
                self._reason = f"its wall time of {wall_time:g} s is over"
                self._stop(child)
            if now - measured > _MEMORY_PAUSE:
                measured = now
                self._check_memory()
                self._check_folder()
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                kill_marked(self._spec.mark)

    def _stop(self, child: subprocess.Popen[bytes]) -> None:
        grace = self._spec.grace
        self._kill_at = float("inf") if grace is None else time.monotonic() + grace
        child.terminate()

    def _check_memory(self) -> None:
        limit, processes = self._spec.memory, psutil.Process().children(recursive=True)
        if self._spec.detached:
            processes = list({*processes, *marked_processes(self._spec.mark)})
        used = _memory_in_use(processes, exact=False)
        if limit is not None and used > limit:
            used = _memory_in_use(processes, exact=True)  # memory that several processes share was counted for each
            if used > limit:
                self._reason = f"it used {used / 1e9:.2f} GB of memory, its limit is {limit / 1e9:.2f} GB"
                self._kill_at = 0.0
        self._peak_memory = max(self._peak_memory, used)

    def _check_folder(self) -> None:
        if not supervisor_file(self._folder).exists():  # its end could not be reported to any process
            self._reason, self._kill_at = "its folder was removed", 0.0
        elif stop_file(self._folder).exists():
            self._stop_requested = True


def _memory_in_use(processes: Sequence[psutil.Process], *, exact: bool) -> int:
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += int(getattr(process.memory_full_info(), "pss", 0)) if exact else process.memory_info().rss
    return total


def _signal_name(code: int) -> str:
    return f"killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else ""


def job_environment(spec: ProcessSpec) -> dict[str, str]:
    """The environment of a job's processes. A job inside another carries the marks of both."""
    marks = [*filter(None, os.environ.get(MARK, "").split(os.pathsep)), spec.mark]
    return {**os.environ, **spec.environment, MARK: os.pathsep.join(marks)}


def marked_processes(mark: str) -> Iterator[psutil.Process]:
    """The processes of a job, without this one; also those that left its process group and its session."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and mark in process.environ().get(MARK, "").split(os.pathsep):
                yield process


def kill_marked(mark: str) -> None:
    """Kill all processes of a job, and those that they start meanwhile."""
    until, empty_looks = time.monotonic() + _CLEARING, 0
    while empty_looks < 2 and time.monotonic() < until:
        processes = list(marked_processes(mark))
        empty_looks = 0 if processes else empty_looks + 1
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(_EXEC_PAUSE)


def process_name(pid: int) -> str:
    """A name for a process that no later process can have: its number and its start time."""
    try:
        return f"{pid}:{psutil.Process(pid).create_time()}"
    except psutil.NoSuchProcess:  # it has ended already
        return f"{pid}:0"


def named_process(name: str) -> psutil.Process | None:
    """The process with a name of `process_name`; None if it has ended."""
    pid, _, created = name.partition(":")
    return running_process(int(pid), created=float(created)) if pid.isdecimal() and created else None


def bind_to_cores(cores: Sequence[int]) -> None:
    """Keep this process, and those it starts, on some cores; no cores: all."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def forward_signals(child: int) -> None:
    """Forward requests to stop (SIGTERM, SIGUSR1) from this process to a child."""

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, forward)


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else process_name(os.getpid()))
