"""Show a run live from its records. It does not matter how the run was started."""

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
    """Yield a function that shows a run live until the block ends."""
    done = threading.Event()
    threads: list[threading.Thread] = []

    def start(run: Run) -> None:
        console.print(f"run {bold(run.path)}")
        shown_before = sum(1 for _ in run.records()) - 1  # records before a resume are not shown again
        threads.append(threading.Thread(target=_show, args=(run, done, shown_before), daemon=True))
        threads[0].start()

    try:
        yield start
    finally:
        done.set()
        for thread in threads:
            thread.join()


class PreparationProgress:
    """Shows the progress and the result of a preparation. The bar appears with the first report."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack, self._started = stack, time.perf_counter()
        self._bar: Progress | None = None

    def __call__(self, state: Any) -> None:
        if self._bar is None:
            self._bar = self._stack.enter_context(progress())
            self._task = self._bar.add_task("prepare", total=None, note="")
        seconds = max(time.perf_counter() - self._started, 1e-9)
        note = f"{state.events:,} events, {state.events / seconds:,.0f}/s, {state.bytes / seconds / 1e6:,.1f} MB/s"
        self._bar.update(self._task, description=state.stage, completed=state.done, total=state.total, note=note)

    def print_result(self, dataset: Dataset) -> None:
        """Remove the bar and print one line."""
        self._stack.close()
        took = "up to date" if self._bar is None else f"{time.perf_counter() - self._started:.1f} s"
        splits = ", ".join(f"{name} {count:,}" for name, count in dataset.splits.items())
        console.print(f"{bold(dataset.path)}: {splits} events [dim]({took})[/]")


@contextlib.contextmanager
def preparing() -> Iterator[PreparationProgress]:
    """Yield an object that a preparation reports its progress to."""
    with contextlib.ExitStack() as stack:
        yield PreparationProgress(stack)


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


def _show(run: Run, done: threading.Event, shown_before: int) -> None:
    from clew.runs.folder import follow

    epochs = 0
    with progress() as bar:
        task = bar.add_task("train", total=None, note="starting")
        before: dict[str, Any] = {"samples": 0, "epoch": -1}
        for record in follow(run, "rank-0", until=done, after=shown_before):
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
    """As many metrics as fit in one line."""
    parts, width = [], console.width - 16
    for name, value in metrics.items():
        width -= len(name) + 9
        if value is not None and width >= 0:
            parts.append(f"[dim]{name}[/] {value:.4f}")
    return "  ".join(parts)
