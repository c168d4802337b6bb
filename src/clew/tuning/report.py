"""`report.html` of a study: one page about all its trials."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from clew.core.config import to_yaml
from clew.runs.html_page import HtmlPage, table
from clew.tuning.figures import study_figures
from clew.tuning.snapshot import StudySnapshot, TrialSummary
from clew.tuning.study import Study
from clew.tuning.study_cost import StudyCost, study_cost

_BADGES = {"complete": "finished", "pruned": "stopped", "waiting": "created"}
"""The state of a run whose badge is shown for a state of a trial."""
_OPEN_ROWS = 50
"""Largest number of trials whose table is open at first."""


def write_report(study: Study) -> Path:
    """Write the report of a study and return its path."""
    snapshot = study.snapshot()
    figures = study_figures(snapshot)
    page = HtmlPage(study.folder.path.resolve().name)
    running = any(trial.state == "running" for trial in snapshot.trials)
    page.header("running" if running else "finished", _facts(study), _notes(running=running))
    page.tiles(_tiles(snapshot, study_cost(snapshot)))
    page.section("Best", _best_table(snapshot))
    page.section("Search", figures=figures["search"])
    page.section("Parameters", figures=figures["parameters"])
    page.section("Training", figures=figures["training"])
    page.section("Cost", figures=figures["cost"])
    page.section("Trials", _trial_table(snapshot))
    settings = escape(to_yaml(study.folder.document().data))
    page.section("Reproduce", f"<details><summary>Settings</summary><pre>{settings}</pre></details>")
    return page.write(study.folder.report_file)


def _facts(study: Study) -> list[str]:
    config = study.config
    return [
        *(f"<b>{escape(objective.metric)}</b> {objective.goal}d" for objective in config.objectives),
        *(f"{number} {state}" for state, number in study.count().items() if number),
        f"sampler {config.sampler.name}",
        f"pruner {config.pruner.name}",
        *([f"{config.folds.count} folds"] if config.folds else []),
    ]


def _notes(*, running: bool) -> Iterator[str]:
    if running:
        now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        yield f"The study is running; this is its state at {now}. <code>clew tune show --html</code> updates the page."


def _tiles(study: StudySnapshot, cost: StudyCost) -> dict[str, str]:
    best = study.best()
    tiles = {}
    if len(best) == 1:
        for objective, value in zip(study.config.objectives, best[0].values, strict=True):
            spread = f" <small>± {best[0].spread[0]:.2g}</small>" if best[0].spread else ""
            tiles[escape(objective.metric)] = f"<b>{value:.5g}</b>{spread}"
    elif best:
        tiles["Pareto front"] = f"<b>{len(best)}</b> <small>trials</small>"
    tiles["time of trials"] = f"<b>{_duration(cost.seconds)}</b>"
    tiles["processor time"] = f"<b>{_duration(cost.cpu)}</b>"
    if cost.saved:
        share = cost.saved / (cost.saved + cost.seconds)
        tiles["saved by pruning"] = f"<b>{_duration(cost.saved)}</b> <small>{share:.0%}</small>"
    return tiles


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(datetime.timedelta(seconds=round(seconds)))


def _best_table(study: StudySnapshot) -> str:
    best = study.best()
    if not best:
        return '<p class="soft">No trial is complete yet.</p>'
    return table(("trial", *_value_headings(study)), [_value_cells(study, trial) for trial in best])


def _value_headings(study: StudySnapshot) -> tuple[str, ...]:
    objectives = (escape(objective.metric) for objective in study.config.objectives)
    return (*objectives, *map(_heading, study.config.space))


def _value_cells(study: StudySnapshot, trial: TrialSummary) -> tuple[str, ...]:
    """Return the number, the objectives and the settings of a trial."""
    values = [f"{value:.6g}" for value in trial.values] or [""] * len(study.config.objectives)
    return (str(trial.number), *values, *(_setting(trial.settings.get(key)) for key in study.config.space))


def _setting(value: Any) -> str:
    text = "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"<code>{escape(text)}</code>"


def _heading(key: str) -> str:
    """Return a key with a line break before its last part."""
    section, _, last = key.rpartition(".")
    return f"<small>{escape(section)}</small><br>{escape(last)}" if section else escape(last)


def _trial_table(study: StudySnapshot) -> str:
    rows = []
    for trial in study.trials:
        number, *values = _value_cells(study, trial)
        state = f'<span class="state {_BADGES.get(trial.state, trial.state)}">{trial.state}</span>'
        reason = f"<small>{escape(trial.reason.removeprefix('pruned: ')[:120])}</small>"
        rows.append((number, state, *values, f"{trial.seconds:.1f}", str(trial.attempts), reason))
    if not rows:
        return ""
    head = ("trial", "", *_value_headings(study), "seconds", "attempts", "")
    opened = " open" if len(rows) <= _OPEN_ROWS else ""
    return f"<details{opened}><summary>{len(rows)} trials</summary>{table(head, rows)}</details>"
