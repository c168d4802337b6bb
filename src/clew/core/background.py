"""Something done again and again, beside what a process is really doing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def repeated(act: Callable[[], None], *, every: float, name: str) -> Iterator[None]:
    """While the block runs, do it every so many seconds in a thread of this name; it has ended when the block has."""
    done = threading.Event()

    def work() -> None:
        while not done.wait(every):
            act()

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
