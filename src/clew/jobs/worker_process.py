"""Worker processes: what marks them, and how they are kept from running the main script again."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import psutil

from clew.core.disk_errors import quiet_disk_errors
from clew.core.process import is_running
from clew.errors import RecipeError

FORWARDED_INTERRUPT = signal.SIGUSR2
"""What a process sends to its workers for Ctrl-C. A terminal sends SIGINT to all processes, and workers ignore it."""
_LOOK = 2.0
"""Seconds between two checks that the parent is running."""
_is_worker = False
_cpu_at_start = 0.0
"""Processor seconds that this process had used when its job started."""


def mark_as_worker() -> None:
    """Remember that this process is a worker."""
    global _is_worker
    _is_worker = True


def ignore_terminal() -> None:
    """Ignore Ctrl-C in a worker: its parent gets it as well, and decides what happens."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def announce_interrupt() -> None:
    """Tell the user what the first Ctrl-C does. It may be called in a signal handler."""
    text = b"\nclew: stopping after this step, with a checkpoint; press Ctrl-C again to stop at once\n"
    with contextlib.suppress(OSError):
        os.write(2, text)


def start_job() -> None:
    """Start counting processor time for a new job."""
    global _cpu_at_start
    _cpu_at_start = time.process_time()


def job_cpu_seconds() -> float:
    """Processor seconds of this process's job so far."""
    return time.process_time() - _cpu_at_start


def follow_parent(parent: int) -> None:
    """Make this process a worker of a pool that exits with its parent.

    A parent that was killed cannot end its workers, which would wait for work for ever.
    """
    mark_as_worker()
    ignore_terminal()
    quiet_disk_errors()
    threading.Thread(target=_exit_with, args=(parent,), name="parent", daemon=True).start()


def _exit_with(parent: int) -> None:
    with contextlib.suppress(psutil.Error):
        created = psutil.Process(parent).create_time()
        while is_running(parent, created=created):
            time.sleep(_LOOK)
    os._exit(1)


def check_not_in_worker(verb: str) -> None:
    """Check that a worker that imports the main script does not run its work again.

    Raises:
        RecipeError: it would.
    """
    if _is_worker:
        raise RecipeError(f"a script that calls {verb} must do so under: if __name__ == '__main__':")


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Start processes that do not import the main script: clew's workers find all they need by name.

    Python would run the script in each of them, and a script without a main guard would start workers of its own.
    """
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    main.__spec__ = None
    if file is not None:
        del main.__file__
    try:
        yield
    finally:
        main.__spec__ = spec
        if file is not None:
            main.__file__ = file
