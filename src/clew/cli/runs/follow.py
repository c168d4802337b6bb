"""Watching a run by reading its records as they are written: the same for every way of starting one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from clew.cli.options import bold, console, progress

if TYPE_CHECKING:
    from rich.progress import Progress

    from clew.data.dataset import Dataset
    from clew.runs import Run


@contextlib.contextmanager
def following() -> Iterator[Callable[[Run], None]]:
    """Give a function that, called with a run, shows it live until the block ends."""
    done = threading.Event()
    threads: list[threading.Thread] = []

    def begin(run: Run) -> None:
        console.print(f"run {bold(run.path)}")
        known = sum(1 for _ in run.records()) - 1  # a resumed run has told these before
        threads.append(threading.Thread(target=_show, args=(run, done, known), daemon=True))
        threads[0].start()

    try:
        yield begin
    finally:
        done.set()
        for thread in threads:
            thread.join()


class Preparing:
    """Shows how far a preparation is, and what came of it. The bar appears with the first piece of work."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack, self._begun = stack, time.perf_counter()
        self._bar: Progress | None = None

    def __call__(self, state: Any) -> None:
        if self._bar is None:
            self._bar = self._stack.enter_context(progress())
            self._task = self._bar.add_task("prepare", total=None, note="")
        seconds = max(time.perf_counter() - self._begun, 1e-9)
        note = f"{state.events:,} events, {state.events / seconds:,.0f}/s, {state.bytes / seconds / 1e6:,.1f} MB/s"
        self._bar.update(self._task, description=state.stage, completed=state.done, total=state.total, note=note)

    def tell(self, dataset: Dataset) -> None:
        """Take the bar away and print one line."""
        self._stack.close()
        took = "up to date" if self._bar is None else f"{time.perf_counter() - self._begun:.1f} s"
        told = ", ".join(f"{name} {count:,}" for name, count in dataset.splits.items())
        console.print(f"{bold(dataset.path)}: {told} events [dim]({took})[/]")


@contextlib.contextmanager
def preparing() -> Iterator[Preparing]:
    """Give what a preparation reports its progress to."""
    with contextlib.ExitStack() as stack:
        yield Preparing(stack)


@contextlib.contextmanager
def counting(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Give what is told of events done, of all where that is known: shows them with their rate and the time left."""
    begun = time.perf_counter()
    with progress() as bar:
        task = bar.add_task(what, total=None, note="events")

        def show(done: int, total: int | None) -> None:
            rate = done / max(time.perf_counter() - begun, 1e-9)
            bar.update(task, completed=done, total=total, note=f"events, {rate:,.0f}/s")

        yield show


def _show(run: Run, done: threading.Event, known: int) -> None:
    from clew.runs.folder import follow

    epochs = 0
    with progress() as bar:
        task = bar.add_task("train", total=None, note="starting")
        before: dict[str, Any] = {"samples": 0, "epoch": -1}
        for record in follow(run, "rank-0", until=done, after=known):
            if record["kind"] == "plan":
                epochs = record["epochs"]
                bar.update(task, total=record["steps"])
                console.print(
                    f"  {record['parameters']:,} parameters, {record['samples']:,} samples, on {record['device']}"
                )
            elif record["kind"] == "batch_size":
                tried = len(record["tried"])
                console.print(
                    f"  batches of {record['chosen']} [dim]({tried} sizes tried in {record['seconds']:.0f} s)[/]"
                )
            elif record["kind"] == "note":
                console.print(f"  [dim]{record['message']}[/]")
            elif record["kind"] == "step":
                speed = (record["samples"] - before["samples"]) / record["seconds"]
                loss = ", ".join(f"{name} {value:.4f}" for name, value in record["loss"].items())
                wait = record["wait"] / record["seconds"]
                bar.update(task, completed=record["step"], note=f"{loss}, {speed:,.0f} samples/s, data wait {wait:.1%}")
                before = record
            elif record["kind"] == "validation":
                console.print(
                    f"  epoch {record['epoch'] + 1:>3}/{epochs}  {_numbers(record['metrics'])}",
                    no_wrap=True,
                    overflow="ellipsis",
                )


def _numbers(metrics: dict[str, Any]) -> str:
    """As many as fit on the line."""
    told, room = [], console.width - 16
    for name, value in metrics.items():
        room -= len(name) + 9
        if value is not None and room >= 0:
            told.append(f"[dim]{name}[/] {value:.4f}")
    return "  ".join(told)
