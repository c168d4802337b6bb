"""Being a worker: a process that clew started, and how it is kept from starting everything again."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

import psutil

from clew.core.process import is_running
from clew.errors import RecipeError

_LOOK = 2.0
"""Seconds between two looks whether a parent lives."""
_inside = False
_before = 0.0
"""Processor seconds that this process had used when its job began."""


def mark() -> None:
    """Remember that this process is a worker."""
    global _inside
    _inside = True


def start_job() -> None:
    """A job begins: what this process did before is not its."""
    global _before
    _before = time.process_time()


def cpu() -> float:
    """Processor seconds of this process's job so far."""
    return time.process_time() - _before


def serve(parent: int) -> None:
    """Be a worker of a pool, as long as the process of this number lives: one that was killed ends nobody, and a pool's
    workers would wait for work for ever."""
    mark()
    threading.Thread(target=_leave_with, args=(parent,), name="parent", daemon=True).start()


def _leave_with(parent: int) -> None:
    with contextlib.suppress(psutil.Error):
        created = psutil.Process(parent).create_time()
        while is_running(parent, created=created):
            time.sleep(_LOOK)
    os._exit(1)


def check_not_inside(verb: str) -> None:
    """A worker that loads a script must not run what the script was started for.

    Raises:
        RecipeError: it is about to.
    """
    if _inside:
        raise RecipeError(f"a script that calls {verb} must do so under: if __name__ == '__main__':")


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Start processes that do not load the main script: clew's workers find all they need by name.

    Python would run the script again in each of them, and one without a main guard would start workers of its own.
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
