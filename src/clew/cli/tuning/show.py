"""The trials of a study as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clew.cli.options import bold, console
from clew.cli.runs.listing import length
from clew.cli.text_table import Column, room, write

if TYPE_CHECKING:
    from clew.tuning.study import Study, TrialSummary

_BRIEF = 60.0
"""Seconds below which tenths of one are told."""


def show(study: Study, *, most: int | None = None) -> None:
    """Print counts, costs and the trials, the best first."""
    from clew.tuning.study_cost import study_cost

    found = study.outcomes()
    counts = ", ".join(f"{number} {state}" for state, number in study.count().items() if number)
    spent = study_cost(study)
    console.print(f"{bold(study.folder.path)}  {counts}")
    console.print(f"[dim]{length(spent.seconds)} of trials, {spent.cpu:,.0f} s of processors[/]{_saved(spent)}")
    if found:
        write(columns(study, ranked(study, found)[:most]), width=room())
    if most is not None and len(found) > most:
        console.print(f"[dim]and {len(found) - most} more[/]")


def _saved(spent: Any) -> str:
    return f"[dim], about {length(spent.saved)} saved by pruning[/]" if spent.saved >= 1 else ""


def ranked(study: Study, found: Sequence[TrialSummary]) -> list[TrialSummary]:
    """Complete ones first, the best of the first objective first."""
    sign = 1 if study.config.objectives[0].direction == "minimize" else -1
    order = ("complete", "running", "pruned", "failed", "waiting")
    return sorted(
        found, key=lambda each: (order.index(each.state), sign * each.values[0] if each.values else each.number)
    )


def columns(study: Study, found: Sequence[TrialSummary]) -> list[Column]:
    """The columns of the table, and how dispensable each is."""
    objectives = [
        Column(goal.metric, [_value(each, place) for each in found], right=True)
        for place, goal in enumerate(study.config.objectives)
    ]
    settings = [
        Column(
            _short(key, study.config.space),
            [_text(each.settings.get(key)) for each in found],
            rank=3 + place,
            right=True,
        )
        for place, key in enumerate(study.config.space)
    ]
    return [
        Column("trial", [str(each.number) for each in found], right=True),
        Column("state", [each.state for each in found]),
        *objectives,
        Column("step", [str(max(each.reports, default="")) for each in found], rank=2, right=True),
        *settings,
        Column("time", [_time(each.seconds) for each in found], rank=1, right=True),
        Column("why", [" ".join(each.reason.split())[:60] for each in found], rank=90),
    ]


def _value(each: TrialSummary, place: int) -> str:
    if each.values:
        spread = f" ± {each.spread[place]:.2g}" if each.spread else ""
        return f"{each.values[place]:.6g}{spread}"
    last = each.reports[max(each.reports)] if each.reports and place == 0 else math.nan
    return "" if math.isnan(last) else f"({last:.6g})"


def _time(seconds: float) -> str:
    return "" if not seconds else f"{seconds:.1f} s" if seconds < _BRIEF else length(seconds)


def _short(key: str, space: Any) -> str:
    """The last part of a key, unless another key ends likewise."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in space) == 1 else key


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
