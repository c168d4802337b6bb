"""A background process that sends the records of a training to the server. It never delays the training.

It is a process, not a thread: a thread would take Python's lock from the loop, and would end with it before the last
records are sent. It reads the files of the run. The training only has to show its end: then the standard input of the
process is closed, however the training ends.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from clew.client.credentials import credentials
from clew.core.process import safe_path
from clew.errors import ClewError, ServerError
from clew.runs.folder import Run, list_runs

if TYPE_CHECKING:
    from clew.runs.push import Pusher

_PERIOD = 1.0
"""Seconds between two checks for new records."""
_LONGEST = 30.0
"""Largest number of seconds between two attempts to reach the server."""
_PATIENCE = 60.0
"""Seconds during which it tries to reach the server after the end of the training."""
GRACE = 15.0
"""Seconds that a training waits for it at the end."""


@contextlib.contextmanager
def pushed(*, run: Run | None = None, root: Path | None = None) -> Iterator[None]:
    """Send a run (or every run in a folder) to the server of `credentials` while the block runs, if there is one.

    At the end it waits a little for the last records. The rest is sent later, or with `clew runs push`.
    """
    if credentials() is None:
        yield
        return
    place = ["--root", str(root)] if run is None else [str(run.path)]
    command = [sys.executable, *safe_path(), "-m", "clew.runs.push_process", *place]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True, cwd=Path.cwd()
    )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.returncode = 0  # it continues by itself; without this Python would warn


def main(arguments: list[str]) -> None:
    """`RUN`, or `--root FOLDER`: push until standard input ends, then push the rest."""
    from clew.client.connection import Connection
    from clew.runs.push import Pusher

    login = credentials()
    if login is None:
        return
    with contextlib.suppress(OSError):
        os.nice(5)  # training comes first
    connection = Connection(login.server, login.token, retry_seconds=0.0)
    pushers: dict[Path, Pusher] = {}
    ended, pause, deadline = False, _PERIOD, 0.0
    while True:
        behind = False
        for run in _runs(arguments):
            pusher = pushers.setdefault(run.path, Pusher(run, connection))
            behind |= not try_push(pusher, last=ended)
        if ended and (not behind or time.monotonic() > deadline):
            return
        pause = min(2 * pause, _LONGEST if not ended else 5.0) if behind else _PERIOD
        if not ended and _ended(pause):
            ended, pause, deadline = True, _PERIOD, time.monotonic() + _PATIENCE
        elif ended:
            time.sleep(pause)


def _runs(arguments: list[str]) -> list[Run]:
    if arguments[0] == "--root":
        return list_runs(Path(arguments[1]))
    return [Run(Path(arguments[0]))]


def try_push(pusher: Pusher, *, last: bool) -> bool:
    """Send what is new; whether nothing is left that another try could send."""
    if pusher.gone:
        return True
    try:
        fresh = pusher.push()
        if last or (fresh and pusher.run.state not in ("created", "running")):
            pusher.push_files()
            pusher.save_settings()
        if fresh or last:
            pusher.note()
    except ServerError as error:
        pusher.gone = pusher.number is not None and error.status == 404
        pusher.note(error=str(error))
        return error.status not in (0, 429, 500, 502, 503, 504)
    except (ClewError, OSError, ValueError) as error:
        pusher.note(error=str(error))
    return True


def _ended(seconds: float) -> bool:
    """Wait so long; whether standard input ended meanwhile."""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        return bool(selector.select(seconds)) and not os.read(sys.stdin.fileno(), 1)


if __name__ == "__main__":
    main(sys.argv[1:])
