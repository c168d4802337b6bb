"""Shows a training in a notebook: one piece of HTML below the cell, which is updated. It needs no widgets."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from html import escape
from typing import Any

from clew.runs.folder import Run
from clew.runs.live_view import LiveView
from clew.runs.records import Record
from clew.runs.svg_curves import svg_curves

_SHOWN_EPOCHS = 12
"""Number of epochs in the table."""
_UPDATE_SECONDS = 0.5
"""Least time between two updates: a notebook stores every one of them that the browser has not shown yet."""


class NotebookView(LiveView):
    """A bar, the newest losses, curves of losses and metrics, and one row per epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None
        self._title, self._facts, self._note = "", "", ""
        self._position: tuple[int, int] = (0, 0)
        self._rows: list[tuple[int, dict[str, Any]]] = []
        self._curves = TrainingCurves()
        self._run: Run | None = None
        self._displayed = 0.0

    def preparing(self, state: Any) -> None:
        self._title, self._position = str(state.stage), (state.done, state.total)
        self._note = f"{state.events:,} events"
        self._display()

    def begin(self, run: Run) -> None:
        self._run, self._title, self._note, self._position = run, str(run.path), "starting", (0, 0)
        self._display()

    def show(self, record: Record) -> None:
        kind = record["kind"]
        if kind == "plan":
            self._position = (0, record["steps"])
            self._facts = f"{record['parameters']:,} parameters, {record['samples']:,} samples, on {record['device']}"
        elif kind == "step":
            self._position = (record["step"], self._position[1])
            self._note = self.step_note(record)
        elif kind == "validation":
            self._rows.append((record["epoch"] + 1, record["metrics"]))
        else:
            return
        self._curves.add(record)
        if kind != "step" or time.monotonic() - self._displayed > _UPDATE_SECONDS:
            self._display()

    def close(self) -> None:
        super().close()
        if self._run is not None:
            end = self._run.end()
            self._note = f"{self._run.state}: {end['message']}" if end and end.get("message") else self._run.state
            self._display()

    def _display(self) -> None:
        ipython: Any = importlib.import_module("IPython.display")
        html, self._displayed = ipython.HTML(self._html()), time.monotonic()
        if self._handle is None:
            self._handle = ipython.display(html, display_id=True)
        else:
            self._handle.update(html)

    def _html(self) -> str:
        done, total = self._position
        bar = f'<progress value="{done}" max="{total}"></progress> {done:,}/{total:,}' if total else ""
        text = " · ".join(escape(part) for part in (self._facts, self._note) if part)
        return f"<div><b>{escape(self._title)}</b> {bar}<br>{text}<br>{self._curves.html()}{self._table()}</div>"

    def _table(self) -> str:
        if not self._rows:
            return ""
        names = list(self._rows[-1][1])
        head = "".join(f"<th>{escape(name)}</th>" for name in ("epoch", *names))
        rows = [
            f"<tr><td>{epoch}/{self._epochs}</td>" + "".join(_cell(metrics.get(name)) for name in names) + "</tr>"
            for epoch, metrics in self._rows[-_SHOWN_EPOCHS:]
        ]
        return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


class TrainingCurves:
    """Losses and validation metrics of a run, as two small plots."""

    def __init__(self) -> None:
        self._steps_per_epoch = 1.0
        self._losses: dict[str, list[tuple[float, float]]] = {}
        self._metrics: dict[str, list[tuple[float, float]]] = {}

    @classmethod
    def of_run(cls, run: Run) -> TrainingCurves:
        """Return the curves of a run so far."""
        curves = cls()
        for record in run.history(run.main_stream):
            curves.add(record)
        return curves

    def add(self, record: Record) -> None:
        """Add a record. Kinds that hold no losses and metrics are ignored."""
        kind = record["kind"]
        if kind == "plan":
            self._steps_per_epoch = max(record["steps"] / max(record["epochs"], 1), 1.0)
        elif kind == "step":
            self._add(self._losses, record, {"train" if n == "loss" else n: v for n, v in record["loss"].items()})
        elif kind == "validation":
            metrics = dict(record["metrics"])
            if "loss" in metrics:
                self._add(self._losses, record, {"validation": metrics.pop("loss")})
            self._add(self._metrics, record, metrics)

    def _add(
        self, curves: dict[str, list[tuple[float, float]]], record: Record, values: Mapping[str, float | None]
    ) -> None:
        for name, value in values.items():
            if value is not None:
                curves.setdefault(name, []).append((record["step"] / self._steps_per_epoch, value))

    def html(self) -> str:
        """Return the plots; empty before there are two points."""
        return svg_curves("loss", self._losses) + svg_curves("validation", self._metrics)


def _cell(value: float | None) -> str:
    return "<td></td>" if value is None else f"<td>{value:.4f}</td>"
