"""The progress of a transfer: bytes, speed and the time left."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from clew.cli.options import console

if TYPE_CHECKING:
    from clew import storage


@contextlib.contextmanager
def show_transfers(title: str) -> Iterator[Callable[[storage.TransferProgress], None]]:
    """Yield a function that transfers report their progress to. Each has one line while it runs.

    Nothing is printed outside a terminal.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    lock, tasks = threading.Lock(), dict[int, TaskID]()

    def show(state: storage.TransferProgress) -> None:
        with lock:
            if id(state) not in tasks:
                tasks[id(state)] = bar.add_task(title, total=state.total, note="")
                bar.start()
            bar.update(tasks[id(state)], completed=state.done, total=state.total, note=state.name)
            if state.done >= state.total:
                bar.remove_task(tasks.pop(id(state)))
            if not tasks:  # other output may come next
                bar.stop()

    try:
        yield show
    finally:
        bar.stop()


@contextlib.contextmanager
def show_fetches() -> Iterator[None]:
    """Show the inputs that are fetched while the block runs."""
    from clew import storage

    with show_transfers("fetch") as show, storage.report_transfers(show):
        yield


def transfer_text(done: storage.TransferProgress, seconds: float) -> str:
    """The result of a transfer in one line."""
    transferred = done.done - done.resumed
    parts = [f"{done.files:,} file{'s' * (done.files != 1)}, {done.total / 1e6:,.1f} MB"]
    if done.unchanged:
        parts.append(f"{done.unchanged:,} unchanged")
    if done.resumed and done.unchanged < done.files:
        parts.append(f"{done.resumed / 1e6:,.1f} MB resumed")
    parts.append(f"{seconds:.1f} s, {transferred / max(seconds, 1e-9) / 1e6:,.1f} MB/s")
    return f"{parts[0]} [dim]({', '.join(parts[1:])})[/]"
