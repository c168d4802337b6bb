"""Commands on this machine that begin at once: forked from a server process that has torch loaded already, or done by
a process that has just ended one like it (`clew.jobs.launchers.warm_server`)."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.errors import RunError
from clew.jobs.launchers.launcher import LaunchedJob, Slot
from clew.jobs.launchers.local import LocalLauncher, named, visible

_SERVER = "clew.jobs.launchers.warm_server"


@dataclass(frozen=True)
class _Server:
    process: subprocess.Popen[bytes]
    bell: int
    """To read from: a byte for every job that has ended."""


_servers: list[_Server] = []
"""At most one: it serves this process, and ends with it."""


class WarmLauncher(LocalLauncher):
    """As `LocalLauncher`, but a job starts in milliseconds. It outlives the server, and whoever asked for it."""

    def __init__(self, *, again: bool = False) -> None:
        """`again`: a process that ended a job well may do the next in the same room."""
        self._again = again

    def start(self, arguments: Sequence[str], *, folder: Path, room: Slot | None = None) -> LaunchedJob:
        here = room or Slot()
        return fork(arguments, folder=folder, cores=here.cores, environment=visible(here), again=self._again)


def fork(
    arguments: Sequence[str],
    *,
    folder: Path,
    cores: Sequence[int],
    environment: Mapping[str, str],
    again: bool = False,
) -> LaunchedJob:
    """Begin `clew ARGUMENTS` on some cores, with more in its environment; `again`: in a process that did another
    before, where one is idle that was begun alike.

    Raises:
        RunError: it cannot be started.
    """
    request = {
        "arguments": list(arguments),
        "folder": str(folder.absolute()),
        "cwd": str(Path.cwd()),
        "cores": list(cores),
        "environment": dict(environment),
        "again": again,
    }
    try:
        folder.mkdir(parents=True)
        pid = _ask(request)
    except OSError as error:
        raise RunError(f"{folder}: cannot start a job there ({error})") from error
    return LaunchedJob("warm", named(pid), str(folder))


def ready(*recipes: str) -> None:
    """Have the server loaded before the first job needs it, with recipes (their names or files); returns at once."""
    _server(*recipes)


def rest(seconds: float) -> None:
    """Wait until a job of the server's has ended, at most so long."""
    if not _servers:
        time.sleep(seconds)
    elif select.select([_servers[0].bell], [], [], seconds)[0]:
        os.read(_servers[0].bell, 1 << 12)


def release() -> None:
    """Let processes go that wait for another job."""
    if _servers and _servers[0].process.poll() is None:
        with contextlib.suppress(OSError):
            _ask({})


def _ask(request: dict[str, Any]) -> int:
    server = _server().process
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(request).encode() + b"\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    if not answer:
        raise OSError("the process that starts jobs has died")
    return int(answer)


def _server(*recipes: str) -> _Server:
    if _servers and _servers[0].process.poll() is not None:
        _dismiss()
    if not _servers:
        heard, rings = os.pipe()
        os.set_blocking(rings, False)
        process = subprocess.Popen(
            [sys.executable, "-m", _SERVER, str(rings), *recipes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(rings,),
        )
        os.close(rings)
        _servers.append(_Server(process, heard))
        atexit.register(_dismiss)
    return _servers[0]


def _dismiss() -> None:
    for server in _servers:
        for pipe in (server.process.stdin, server.process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        os.close(server.bell)
        server.process.kill()  # jobs do not need it, and it may still be loading
        server.process.wait()
    _servers.clear()
