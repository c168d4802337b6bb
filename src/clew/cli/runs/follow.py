"""Show a run live from its records. It does not matter how the run was started."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from clew.cli.options import console, progress
from clew.runs.live_view import RunView, TerminalView

if TYPE_CHECKING:
    from clew.runs import Run


@contextlib.contextmanager
def following() -> Iterator[Callable[[Run], None]]:
    """Yield a function that, called with a run, shows it live until the block ends."""
    with preparing() as view:
        yield view.started


@contextlib.contextmanager
def preparing() -> Iterator[RunView]:
    """Yield a view that shows a preparation, and then a run, until the block ends."""
    with contextlib.closing(TerminalView(console)) as view:
        yield view


@contextlib.contextmanager
def counting(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function of events done and events in total (None: unknown). It shows them with their rate."""
    started = time.perf_counter()
    with progress() as bar:
        task = bar.add_task(title, total=None, note="events")

        def show(done: int, total: int | None) -> None:
            rate = done / max(time.perf_counter() - started, 1e-9)
            bar.update(task, completed=done, total=total, note=f"events, {rate:,.0f}/s")

        yield show
