"""`clew runs list`: which runs, in which order, in which columns."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clew.cli.text_table import Column, room, write
from clew.errors import ConfigError, nearest

if TYPE_CHECKING:
    from clew.runs.listing import Glance

_METRICS = 4
"""Metrics that get a column where there is room."""


def chosen(found: Sequence[Glance], *, states: Sequence[str], sort: str, reverse: bool) -> list[Glance]:
    """Those in one of the states (all if none is named), sorted by `name`, `time` (newest first) or a metric of the
    last validation (largest first; runs without it come last).

    Raises:
        ConfigError: there is no such state, or no run has such a metric.
    """
    from clew.runs.folder import STATES

    known = (*STATES, "damaged")
    for state in states:
        if state not in known:
            raise ConfigError(f"--state {state}: there is no such state{nearest(state, known)}")
    kept = [each for each in found if not states or each.state in states]
    if sort in ("name", "time"):
        order = sorted(kept, key=lambda each: each.name if sort == "name" else -each.begun)
        return order[::-1] if reverse else order
    names = {name for each in found for name in each.metrics}
    if sort not in names:
        raise ConfigError(f"--sort {sort}: not a metric of any run{nearest(sort, names | {'name', 'time'})}")
    sign = 1 if reverse else -1
    return sorted(kept, key=lambda each: (each.metrics.get(sort) is None, sign * (each.metrics.get(sort) or 0.0)))


def as_json(found: Sequence[Glance]) -> str:
    """Everything that is known of them, for other programs."""
    return json.dumps([vars(each) for each in found], indent=1)


def show(found: Sequence[Glance], *, first: str = "") -> None:
    """Print a line a run; the metric called `first` stands before the others."""
    write(columns(found, first=first), width=room())


def columns(found: Sequence[Glance], *, first: str = "") -> list[Column]:
    """The columns of the list, and how dispensable each is."""
    names = list(dict.fromkeys(name for each in found for name in each.metrics))
    names = sorted(names, key=lambda name: name != first)[:_METRICS]
    metrics = [
        Column(name, [number(each.metrics.get(name)) for each in found], rank=(1, 5, 10, 11)[place], right=True)
        for place, name in enumerate(names)
    ]
    return [
        Column("run", [each.name for each in found]),
        Column("state", [each.state for each in found]),
        Column("recipe", [Path(each.recipe).stem for each in found], rank=4),
        Column("epochs", [_epochs(each) for each in found], rank=2, right=True),
        Column("workers", [str(each.workers or "") for each in found], rank=8, right=True),
        Column("samples/s", [f"{each.samples_per_second:,.0f}" for each in found], rank=6, right=True),
        Column("time", [length(each.seconds) for each in found], rank=3, right=True),
        *metrics,
        Column("begun", [_date(each.begun) for each in found], rank=7),
        Column("why", [_line(each.message) for each in found], rank=9),
    ]


def length(seconds: float) -> str:
    """A length of time as h:mm:ss."""
    return str(datetime.timedelta(seconds=round(seconds)))


def _epochs(each: Glance) -> str:
    return f"{each.epochs_done}/{each.epochs}" if each.epochs else str(each.epochs_done)


def _date(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M") if seconds else ""


def number(value: float | None) -> str:
    """A metric, or nothing."""
    return "" if value is None else f"{value:.4g}" if abs(value) >= 1e4 else f"{value:.4f}"


def _line(message: str) -> str:
    """The beginning of a message, on one line."""
    text = " ".join(message.split())
    return text if len(text) <= 60 else f"{text[:59]}…"
