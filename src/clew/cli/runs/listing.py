"""`clew runs list`: which runs, in which order, in which columns."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.cli.text_table import Column, line_width, write
from clew.errors import ConfigError, nearest

if TYPE_CHECKING:
    from clew.cli.runs.selection import RunValues
    from clew.runs.listing import RunListing

_METRICS = 4
"""Metrics that have a column if the terminal is wide enough."""


def select_runs(
    runs: Sequence[RunListing], *, states: Sequence[str], sort: str, reverse: bool, values: RunValues
) -> list[RunListing]:
    """The runs in one of the states (all if none is named), sorted.

    Args:
        runs: The runs.
        states: States to select.
        sort: `name`, `time` (newest first), or a metric or setting (largest first; runs without it last). A minus
            before it, as the dashboard has it, changes nothing.
        reverse: Reverse the order.
        values: Settings and metrics of the runs.

    Raises:
        ConfigError: An unknown state, or a name that no run has.
    """
    from clew.runs.folder import STATES

    known = (*STATES, "damaged")
    for state in states:
        if state not in known:
            raise ConfigError(f"--state {state}: no such state{nearest(state, known)}")
    matching = [each for each in runs if not states or each.state in states]
    sort = sort.removeprefix("-")
    if sort in ("name", "time"):
        order = sorted(matching, key=lambda each: each.name if sort == "name" else -each.started)
        return order[::-1] if reverse else order
    if any(sort in each.metrics for each in runs):
        keys = [each.metrics.get(sort) for each in matching]
    else:
        keys = values.column(sort, "--sort", matching) if runs else []
    present = [(key, place) for place, key in enumerate(keys) if key is not None]
    texts = any(isinstance(key, str) for key, _ in present)
    present.sort(key=lambda pair: str(pair[0]) if texts else pair[0], reverse=not reverse)
    absent = [place for place, key in enumerate(keys) if key is None]
    return [matching[place] for place in [*(place for _, place in present), *absent]]


def as_json(runs: Sequence[RunListing]) -> str:
    """All facts about the runs as JSON."""
    return json.dumps([asdict(each) for each in runs], indent=1)


def show(runs: Sequence[RunListing], *, first: str = "") -> None:
    """Print one line per run; the metric called `first` comes before the others."""
    write(columns(runs, first=first), width=line_width())


def show_columns(runs: Sequence[RunListing], chosen: Mapping[str, Sequence[Any]]) -> None:
    """Print name, state and chosen columns."""
    cells = [Column("run", [each.name for each in runs]), Column("state", [each.state for each in runs])]
    for place, (name, values) in enumerate(chosen.items()):
        numbers = any(isinstance(value, (int, float)) for value in values)
        cells.append(Column(name, [_cell(value) for value in values], rank=place + 1, right=numbers))
    write(cells, width=line_width())


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def columns(runs: Sequence[RunListing], *, first: str = "") -> list[Column]:
    """The columns of the list. Columns with a high rank are dropped first."""
    names = list(dict.fromkeys(name for each in runs for name in each.metrics))
    names = sorted(names, key=lambda name: name != first)[:_METRICS]
    metrics = [
        Column(name, [number(each.metrics.get(name)) for each in runs], rank=(1, 5, 10, 11)[place], right=True)
        for place, name in enumerate(names)
    ]
    damaged = any(each.state == "damaged" for each in runs)
    return [
        Column("run", [each.name for each in runs]),
        Column("state", [each.state if each.trained else f"{each.state}, no step" for each in runs]),
        Column("recipe", [Path(each.recipe).stem for each in runs], rank=4),
        Column("epochs", [_epochs(each) for each in runs], rank=2, right=True),
        Column("workers", [str(each.workers or "") for each in runs], rank=8, right=True),
        Column("samples/s", [f"{each.times.samples_per_second:,.0f}" for each in runs], rank=6, right=True),
        Column("time", [length(each.seconds) for each in runs], rank=3, right=True),
        *metrics,
        Column("started", [_date(each.started) for each in runs], rank=7),
        Column("why", [_line(each.message) for each in runs], rank=1 if damaged else 9),
    ]


def length(seconds: float) -> str:
    """A length of time as h:mm:ss."""
    return str(datetime.timedelta(seconds=round(seconds)))


def _epochs(each: RunListing) -> str:
    return f"{each.epochs_done}/{each.epochs}" if each.epochs else str(each.epochs_done)


def _date(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M") if seconds else ""


def number(value: float | None) -> str:
    """A metric as text; empty for None."""
    return "" if value is None else f"{value:.4g}" if abs(value) >= 1e4 else f"{value:.4f}"


def _line(message: str) -> str:
    """The beginning of a message, on one line."""
    text = " ".join(message.split())
    return text if len(text) <= 50 else f"{text[:49]}…"
