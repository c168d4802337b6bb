"""Showing a transfer: bytes, speed and the time left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from clew.cli.options import console

if TYPE_CHECKING:
    from clew import storage


@contextlib.contextmanager
def moving(what: str) -> Iterator[Callable[[storage.Progress], None]]:
    """Give what a transfer reports its progress to; silent where nobody watches."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None, note="")

        def show(state: storage.Progress) -> None:
            bar.update(task, completed=state.done, total=state.total, note=state.name)

        yield show


def told(done: storage.Progress, seconds: float) -> str:
    """What a transfer amounted to, in one line."""
    moved = done.done - done.resumed
    parts = [f"{done.files:,} file{'s' * (done.files != 1)}, {done.total / 1e6:,.1f} MB"]
    if done.same:
        parts.append(f"{done.same:,} there already")
    if done.resumed and done.same < done.files:
        parts.append(f"{done.resumed / 1e6:,.1f} MB from before")
    parts.append(f"{seconds:.1f} s, {moved / max(seconds, 1e-9) / 1e6:,.1f} MB/s")
    return f"{parts[0]} [dim]({', '.join(parts[1:])})[/]"
