"""The trials of a study as a table in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from clew.cli.options import bold, console
from clew.cli.runs.listing import length
from clew.cli.text_table import Column, line_width, write

if TYPE_CHECKING:
    from clew.tuning.snapshot import TrialSummary
    from clew.tuning.study import Study

_STATE_ORDER = ("complete", "running", "pruned", "failed", "waiting")
_MINUTE = 60.0


def show(study: Study, *, limit: int | None = None) -> None:
    """Print counts, cost and the trials, the best first; at most `limit` trials."""
    from clew.tuning.study_cost import study_cost

    snapshot = study.snapshot()
    counts = ", ".join(f"{number} {state}" for state, number in study.count().items() if number)
    cost = study_cost(snapshot)
    saved = f"[dim], about {length(cost.saved)} saved by pruning[/]" if cost.saved >= 1 else ""
    console.print(f"{bold(study.folder.path)}  {counts}")
    console.print(f"[dim]{length(cost.seconds)} of trials, {cost.cpu:,.0f} s of processors[/]{saved}")
    if snapshot.trials:
        write(columns(study, ranked(study, snapshot.trials)[:limit]), width=line_width())
    if limit is not None and len(snapshot.trials) > limit:
        console.print(f"[dim]and {len(snapshot.trials) - limit} more[/]")


def ranked(study: Study, trials: Sequence[TrialSummary]) -> list[TrialSummary]:
    """Return the trials with the complete ones first, in order of the first objective."""
    sign = 1 if study.config.objectives[0].goal == "minimize" else -1

    def rank(trial: TrialSummary) -> tuple[int, float]:
        return _STATE_ORDER.index(trial.state), sign * trial.values[0] if trial.values else trial.number

    return sorted(trials, key=rank)


def columns(study: Study, trials: Sequence[TrialSummary]) -> list[Column]:
    """Return the columns of the table. A narrow terminal drops those of the highest rank first."""
    objectives = [
        Column(objective.metric, [_value(trial, index) for trial in trials], right=True)
        for index, objective in enumerate(study.config.objectives)
    ]
    settings = [
        Column(
            _heading(key, study.config.space),
            [_setting(trial.settings.get(key)) for trial in trials],
            rank=3 + index,
            right=True,
        )
        for index, key in enumerate(study.config.space)
    ]
    return [
        Column("trial", [str(trial.number) for trial in trials], right=True),
        Column("state", [trial.state for trial in trials]),
        *objectives,
        Column("epoch", [str(max(trial.reports, default="")) for trial in trials], rank=2, right=True),
        *settings,
        Column("time", [_time(trial.seconds) for trial in trials], rank=1, right=True),
        Column("reason", [" ".join(trial.reason.split())[:60] for trial in trials], rank=90),
    ]


def _value(trial: TrialSummary, index: int) -> str:
    """Return an objective with its spread, or the last report in brackets."""
    if trial.values:
        spread = f" ± {trial.spread[index]:.2g}" if trial.spread else ""
        return f"{trial.values[index]:.6g}{spread}"
    last = trial.last_report if trial.reports and index == 0 else math.nan
    return "" if math.isnan(last) else f"({last:.6g})"


def _time(seconds: float) -> str:
    return "" if not seconds else f"{seconds:.1f} s" if seconds < _MINUTE else length(seconds)


def _heading(key: str, keys: Iterable[str]) -> str:
    """Return the last part of a key, or the full key if another key ends with the same part."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def _setting(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
