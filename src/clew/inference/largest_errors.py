"""The events of an evaluation with the largest losses: examples of errors for the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew import figure
from clew.data.table import Ragged, Table
from clew.figure import Figure
from clew.inference.model_runner import ModelRunner
from clew.recipe import Recipe
from clew.training import validation

EXAMPLES = 6
"""Number of events that the report shows."""
TASK = "largest errors"
"""Name of their section in the report."""
_MAX_COLUMNS = 10
"""Largest number of columns in the table of events."""


@dataclass(frozen=True)
class ErrorExample:
    """One event, the outputs of the network for it, and the objects that the recipe made of them."""

    loss: float
    samples: Table
    outputs: dict[str, NDArray[Any]]
    objects: Table


@dataclass
class LargestErrors:
    """The events with the largest losses, the largest first. Of equal losses the first stays."""

    best: list[ErrorExample] = field(default_factory=list)

    def examples(self, engine: ModelRunner, samples: Table, losses: NDArray[Any]) -> list[ErrorExample]:
        """Return the events whose losses are among the largest so far, and remember them.

        Args:
            engine: The model. It runs again on each of these events.
            samples: Events.
            losses: The loss of each. Losses that are not finite are ignored.
        """
        smallest_loss = self.best[-1].loss if len(self.best) == EXAMPLES else -np.inf
        finite = np.where(np.isfinite(losses), losses, -np.inf)
        rows = [row for row in np.argsort(-finite, kind="stable")[:EXAMPLES] if finite[row] > smallest_loss]
        examples = [_example(engine, samples.slice(int(row), int(row) + 1), float(losses[row])) for row in rows]
        self.add(examples)
        return examples

    def add(self, examples: Iterable[ErrorExample]) -> None:
        """Add events, and forget those that are no longer among the largest."""
        self.best = sorted([*self.best, *examples], key=lambda example: -example.loss)[:EXAMPLES]

    def figures(self, recipe: Recipe) -> dict[str, Figure]:
        """Return a table of the events, and the displays that the recipe makes of them."""
        if not self.best:
            return {}
        figures = {"errors": _table(self.best)}
        for number, example in enumerate(self.best):
            displays = recipe.display(example.samples, example.outputs, example.objects)
            figures |= {f"error_{number}_{name}": plot for name, plot in displays.items()}
        return {name: with_task(plot, TASK) for name, plot in figures.items()}


def with_task(plot: Figure, task: str) -> Figure:
    """Return a figure that the report shows in the section of a task; in the common section if the task is empty."""
    return {**plot, "layout": {**plot["layout"], **({"meta": {"task": task}} if task else {})}}


def _example(engine: ModelRunner, samples: Table, loss: float) -> ErrorExample:
    outputs, _ = validation.forward(engine.recipe, engine.model, samples, engine.device)
    return ErrorExample(loss, samples, outputs, engine.recipe.reconstruct(samples, outputs))


def _table(examples: list[ErrorExample]) -> Figure:
    """Return a table with one row per event: its loss, its predictions, and its numbers."""
    rows = [{"loss": example.loss, **_numbers(example.objects), **_numbers(example.samples)} for example in examples]
    names = list(rows[0])[:_MAX_COLUMNS]
    columns = {name: [row.get(name, "") for row in rows] for name in names}
    return figure.table(columns, title="Events with the largest losses")


def _numbers(table: Table) -> dict[str, Any]:
    """Return the values of the columns that have one number per event."""
    columns = {name: table[name] for name in table}
    return {
        name: column[0].item()
        for name, column in columns.items()
        if not isinstance(column, Ragged) and column.ndim == 1
    }
