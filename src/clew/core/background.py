"""Repeat a function in a background thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def run_repeatedly(act: Callable[[], None], *, every: float, name: str) -> Iterator[None]:
    """Call a function repeatedly in a background thread while the block runs.

    Args:
        act: The function. An exception in it ends the thread.
        every: Seconds between two calls. The first call comes after this time.
        name: Name of the thread.
    """
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(every):
            act()

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
