"""Shows a training while it runs: lines and a bar in a terminal. `notebook_view` shows it in a notebook.

A view reads the records of the run as they are written, so every way of starting a training is shown in the same way.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from clew.runs.folder import Run, follow
from clew.runs.records import Record

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


class RunView:
    """Shows nothing. Base class of the views.

    `preparing` and `prepared` are called by a preparation, `started` when the run exists, `close` at the end.
    """

    def preparing(self, state: Any) -> None:
        """Show how far a preparation is (`clew.data.prepare.api.PrepareProgress`)."""

    def prepared(self, dataset: Any) -> None:
        """Show the dataset that a preparation made, or found."""

    def started(self, run: Run) -> None:
        """Show a run until `close` is called."""

    def close(self) -> None:
        """Show what is left to show, and end."""


class LiveView(RunView):
    """Reads the records of a run in a thread. Subclasses show them."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._created = time.perf_counter()
        self._epochs, self._samples = 0, 0

    def started(self, run: Run) -> None:
        self.begin(run)
        shown = -1
        for record in run.records():  # these were shown when they were written
            self._remember(record)
            shown += 1
        self._thread = threading.Thread(target=self._follow, args=(run, shown), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _follow(self, run: Run, after: int) -> None:
        with self:
            for record in follow(run, "rank-0", until=self._done, after=after):
                if record["kind"] == "plan":
                    self._remember(record)
                self.show(record)
                self._remember(record)

    def _remember(self, record: Record) -> None:
        """Remember what later records are shown with."""
        if record["kind"] == "plan":
            self._epochs = record["epochs"]
        elif record["kind"] == "step":
            self._samples = record["samples"]

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *error: object) -> None:
        """End what the thread shows."""

    def begin(self, run: Run) -> None:
        """Show that a run starts."""

    def show(self, record: Record) -> None:
        """Show one record."""

    def step_note(self, record: Record) -> str:
        """Losses and speed of a step."""
        speed = (record["samples"] - self._samples) / record["seconds"]
        losses = ", ".join(f"{name} {value:.4f}" for name, value in record["loss"].items())
        return f"{losses}, {speed:,.0f} samples/s, data wait {record['wait'] / record['seconds']:.1%}"


class TerminalView(LiveView):
    """Prints one line per epoch, and a bar for steps below it. Without a terminal there is no bar."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._bar: Progress | None = None
        self._task: Any = None

    def preparing(self, state: Any) -> None:
        bar = self._open_bar("prepare")
        seconds = max(time.perf_counter() - self._created, 1e-9)
        note = f"{state.events:,} events, {state.events / seconds:,.0f}/s, {state.bytes / seconds / 1e6:,.1f} MB/s"
        bar.update(self._task, description=state.stage, completed=state.done, total=state.total, note=note)

    def prepared(self, dataset: Any) -> None:
        from rich.markup import escape

        duration = "up to date" if self._bar is None else f"{time.perf_counter() - self._created:.1f} s"
        self._close_bar()
        counts = ", ".join(f"{name} {count:,}" for name, count in dataset.splits.items())
        self._console.print(f"[bold]{escape(str(dataset.path))}[/]: {counts} events [dim]({duration})[/]")

    def begin(self, run: Run) -> None:
        from rich.markup import escape

        self._console.print(f"run [bold]{escape(str(run.path))}[/]")

    def __enter__(self) -> TerminalView:
        self._open_bar("train")
        return self

    def __exit__(self, *error: object) -> None:
        self._close_bar()

    def close(self) -> None:
        super().close()
        self._close_bar()

    def show(self, record: Record) -> None:
        bar, kind = self._open_bar("train"), record["kind"]
        if kind == "plan":
            bar.update(self._task, total=record["steps"])
            facts = f"{record['parameters']:,} parameters, {record['samples']:,} samples, on {record['device']}"
            self._console.print(f"  {facts}")
        elif kind == "batch_size":
            tried = f"{len(record['tried'])} sizes tried in {record['seconds']:.0f} s"
            self._console.print(f"  batches of {record['chosen']} [dim]({tried})[/]")
        elif kind == "note":
            self._console.print(f"  [dim]{record['message']}[/]")
        elif kind == "step":
            bar.update(self._task, completed=record["step"], note=self.step_note(record))
        elif kind == "validation":
            line = f"  epoch {record['epoch'] + 1:>3}/{self._epochs}  {self._metrics(record['metrics'])}"
            self._console.print(line, no_wrap=True, overflow="ellipsis")

    def _metrics(self, metrics: dict[str, Any]) -> str:
        """As many metrics as fit on a line."""
        shown, width = [], self._console.width - 16
        for name, value in metrics.items():
            width -= len(name) + 9
            if value is not None and width >= 0:
                shown.append(f"[dim]{name}[/] {value:.4f}")
        return "  ".join(shown)

    def _open_bar(self, description: str) -> Progress:
        if self._bar is None:
            self._bar = progress_bar(self._console)
            self._task = self._bar.add_task(description, total=None, note="starting")
            self._bar.start()
        return self._bar

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def progress_bar(console: Console) -> Progress:
    """A bar with a count, an estimate and a note; nothing is shown without a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[note]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def view_for_python(progress: bool | None) -> RunView:
    """Return the view for a training that was started from Python.

    Args:
        progress: None: a view in a notebook or a terminal, nothing elsewhere. True: a view in any case. False: nothing.
    """
    if progress is False:
        return RunView()
    if in_notebook():
        from clew.runs.notebook_view import NotebookView

        return NotebookView()
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    return TerminalView(console) if progress or console.is_terminal else RunView()


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
