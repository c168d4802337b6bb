"""Tasks on this machine that start in milliseconds.

They are forked from a server process that has torch loaded already, or run in a process that has just finished a task
like it (`clew.jobs.launchers.warm_server`).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.core.process import safe_path
from clew.errors import RunError
from clew.jobs import supervisor
from clew.jobs.launchers.launcher import JobState, LaunchedJob, Slot, Supervision, state_of_end
from clew.jobs.launchers.local import LocalLauncher, visible_devices
from clew.jobs.supervisor import named_process, process_name
from clew.jobs.task import Task

_SERVER = "clew.jobs.launchers.warm_server"
_LOOK_PAUSE = 0.3
"""Seconds between two looks for the process of a job; the record of its end is looked for every time."""


@dataclass(frozen=True)
class _WarmServer:
    process: subprocess.Popen[bytes]
    bell: int
    """A pipe to read from: it gets one byte for every job that ends."""


_servers: list[_WarmServer] = []
"""At most one. It serves this process and ends with it."""


class WarmLauncher(LocalLauncher):
    """As `LocalLauncher`, with jobs that start in milliseconds. They outlive the server and this process.

    A job has no limits of time and memory.
    """

    name = "warm"

    def __init__(self, *, again: bool = False) -> None:
        """`again`: a process whose job succeeded may run the next job of the same slot."""
        self._again = again
        self._looked: dict[str, float] = {}
        """When the process of a job was last looked for, by folder."""

    def start(
        self, task: Task, *, folder: Path, slot: Slot | None = None, supervision: Supervision | None = None
    ) -> LaunchedJob:
        environment = {**visible_devices(slot or Slot()), **(supervision or Supervision()).environment}
        cores = slot.cores if slot is not None else ()
        return fork(task, folder=folder, cores=cores, environment=environment, again=self._again)

    def state(self, job: LaunchedJob) -> JobState:
        recent = time.monotonic() < self._looked.get(job.folder, float("-inf")) + _LOOK_PAUSE
        alive = recent or named_process(job.id) is not None
        end = supervisor.read_end(Path(job.folder))
        if end is None and alive:
            if not recent:
                self._looked[job.folder] = time.monotonic()
            return "running"
        self._looked.pop(job.folder, None)
        return "lost" if end is None else state_of_end(end.code)

    def stop(self, job: LaunchedJob) -> None:
        process = self._supervisor(job)
        if process is not None:
            process.terminate()

    def kill(self, job: LaunchedJob) -> None:
        process = self._supervisor(job)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def fork(
    task: Task,
    *,
    folder: Path,
    cores: Sequence[int],
    environment: Mapping[str, str],
    again: bool = False,
) -> LaunchedJob:
    """Start a task in a forked process.

    Args:
        task: What to run.
        folder: The job's folder; it is created.
        cores: Numbers of the cores it is bound to; empty: all.
        environment: More variables.
        again: Use an idle process that was started alike, if there is one.

    Raises:
        RunError: it cannot be started.
    """
    request = {
        "task": task.model_dump_json(),
        "folder": str(folder.absolute()),
        "cwd": str(Path.cwd()),
        "cores": list(cores),
        "environment": dict(environment),
        "again": again,
    }
    try:
        folder.mkdir(parents=True)
        pid = _request(request)
    except OSError as error:
        raise RunError(f"{folder}: cannot start a job there ({error})") from error
    return LaunchedJob(WarmLauncher.name, process_name(pid), str(folder))


def prepare_server(*recipes: str) -> None:
    """Load the server before the first job needs it, with recipes (names or files). Returns at once."""
    _server(*recipes)


def wait_for_job(seconds: float) -> None:
    """Wait until a job of the server ends, but at most this long."""
    if not _servers:
        time.sleep(seconds)
    elif select.select([_servers[0].bell], [], [], seconds)[0]:
        os.read(_servers[0].bell, 1 << 12)


def release_idle_processes() -> None:
    """End the processes that wait for another job."""
    if _servers and _servers[0].process.poll() is None:
        with contextlib.suppress(OSError):
            _request({})


def _request(request: dict[str, Any]) -> int:
    server = _server().process
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(request).encode() + b"\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    if not answer:
        raise OSError("the process that starts jobs has died")
    return int(answer)


def _server(*recipes: str) -> _WarmServer:
    if _servers and _servers[0].process.poll() is not None:
        _close_server()
    if not _servers:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        process = subprocess.Popen(
            [sys.executable, *safe_path(), "-m", _SERVER, str(writing), *recipes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(writing,),
        )
        os.close(writing)
        _servers.append(_WarmServer(process, reading))
        atexit.register(_close_server)
    return _servers[0]


def _close_server() -> None:
    for server in _servers:
        for pipe in (server.process.stdin, server.process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        os.close(server.bell)
        server.process.kill()  # jobs do not need it, and it may still be loading
        server.process.wait()
    _servers.clear()
