"""Pages of studies: the list, and one page per study."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any

import sqlalchemy as sa
from fastapi import Query, Request, Response
from pydantic import ValidationError

from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import Number, visible_row
from clew.server.dashboard import files, layout
from clew.server.dashboard.best_trial import can_train_best
from clew.server.dashboard.formatting import duration, number
from clew.server.dashboard.run_cards import short_recipe
from clew.server.database.tables import agents, jobs, runs, studies, trials, users
from clew.server.studies.study_rows import EXTERNAL_FACT
from clew.tuning.folder import run_name

if TYPE_CHECKING:
    from clew.tuning.snapshot import StudySnapshot, TrialSummary

router = layout.router()
_PAGE = 50
_MAX_LISTED = 1000
"""Trials in the table."""
_MAX_CACHED = 32
"""Studies whose figures are cached."""
After = Annotated[int | None, Query(ge=1, le=2**63 - 1)]


@router.get("/studies")
def index(request: Request, viewer: layout.Viewer, after: After = None) -> Response:
    """The list of studies, the newest first."""
    query = sa.select(studies, users.c.name.label("owner_name")).join(users, users.c.id == studies.c.owner)
    query = query.where(viewer.visible(studies)).order_by(studies.c.id.desc()).limit(_PAGE + 1)
    if after is not None:
        query = query.where(studies.c.id < after)
    with request.app.state.service.database.read() as connection:
        rows = [dict(row) for row in connection.execute(query).mappings()]
        listed = [_list_values(connection, row) for row in rows[:_PAGE]]
    following = layout.link("/studies", after=rows[_PAGE - 1]["id"]) if len(rows) > _PAGE else None
    return layout.page(request, "studies.html", "studies", studies=listed, next=following)


@router.get("/studies/{number}")
def study(request: Request, viewer: layout.Viewer, number: Number) -> Response:
    """The page of a study: progress, figures and trials."""
    with request.app.state.service.database.read() as connection:
        row = visible_row(connection, studies, number, viewer, "study")
        all_trials = _trials(connection, number)
        trial_jobs = _trial_jobs(connection, number)
        trial_runs = _trial_runs(connection, trial_jobs)
        runs_by_trial = _runs_by_trial(connection, viewer, number)
        may_train = "submit" in viewer.scopes and can_train_best(connection, viewer, row)
    best, tiles, figures = request.app.state.study_figures.get(row, lambda: _study_figures(row, all_trials))
    shown = {"id": row.id, "name": row.name, "state": _state(row, all_trials)}
    newest = [_trial_values(trial) for trial in reversed(all_trials)][:_MAX_LISTED]
    for trial in newest:
        of_job = trial_runs.get((trial["job"], run_name(trial["number"])))
        trial["run"] = trial["run"] or of_job or runs_by_trial.get(trial["number"])
    values: dict[str, Any] = {"study": shown, "job": row.job, "trials": newest, "trial_jobs": trial_jobs}
    values |= {"goals": [str(each.get("metric", "")) for each in _objectives(row)], "keys": list(_mapping(row.space))}
    values |= {"best": best, "figures": figures, "tiles": tiles, "facts": _facts(row, all_trials)}
    values["may_train_best"] = may_train and bool(best)
    return layout.page(request, "study.html", "studies", **values)


class StudyFigures:
    """A cache of best trials, tiles and figures of studies. They take long, and change only when the study does."""

    def __init__(self) -> None:
        self._cache: dict[int, tuple[float, Any]] = {}
        self._lock = threading.Lock()

    def get(self, row: Any, make: Callable[[], Any]) -> Any:
        """Return the values of a study; `make` computes them if the study changed since."""
        updated, values = self._cache.get(row.id, (None, None))
        if updated == row.updated:
            return values
        values = make()
        with self._lock:
            self._cache.pop(row.id, None)
            self._cache[row.id] = row.updated, values
            for old in list(self._cache)[:-_MAX_CACHED]:
                del self._cache[old]
        return values


def _study_figures(
    row: Any, all_trials: list[dict[str, Any]]
) -> tuple[list[int], list[dict[str, str]], list[dict[str, Any]]]:
    """Return the numbers of the best trials, tiles and figures."""
    study = _as_study(row, all_trials)
    best = [] if study is None else study.best()
    figures = [] if study is None else _figures(study)
    return [outcome.number for outcome in best], _tiles(row, all_trials, study, best), figures


def _trials(connection: sa.Connection, study: int) -> list[dict[str, Any]]:
    query = sa.select(trials).where(trials.c.study == study).order_by(trials.c.number)
    return [dict(row) for row in connection.execute(query).mappings()]


def _trial_jobs(connection: sa.Connection, study: int) -> dict[int, dict[str, Any]]:
    """Return the state and the agent of the jobs of a study's trials, by number of the job."""
    query = sa.select(jobs.c.id, jobs.c.state, jobs.c.attempt, agents.c.name.label("agent"))
    query = query.outerjoin(agents, agents.c.id == jobs.c.agent)
    query = query.where(jobs.c.study == study, jobs.c.kind == "trial")
    return {row["id"]: dict(row) for row in connection.execute(query).mappings()}


def _trial_runs(connection: sa.Connection, trial_jobs: Mapping[int, Any]) -> dict[tuple[int, str], int]:
    """Return the newest run of every trial that is a job, by job and name."""
    query = sa.select(runs.c.job, runs.c.name, runs.c.id).where(runs.c.job.in_(list(trial_jobs))).order_by(runs.c.id)
    return {(row.job, row.name): row.id for row in connection.execute(query)}


def _runs_by_trial(connection: sa.Connection, viewer: Caller, study: int) -> dict[int, int]:
    """Return the newest run of every trial whose run names its study, by number of the trial."""
    query = sa.select(runs.c.trial, runs.c.id).where(runs.c.study == study, runs.c.deleted.is_(None))
    query = query.where(viewer.visible(runs)).order_by(runs.c.id)
    return {row.trial: row.id for row in connection.execute(query)}


def _recipe(connection: sa.Connection, row: Mapping[str, Any]) -> str:
    """Return the name of the recipe of a study: that of its settings, or of its trials; empty if neither is known."""
    recipe = str(_mapping(row["spec"]).get("recipe", ""))
    recipe = recipe or connection.scalar(sa.select(sa.func.max(runs.c.recipe)).where(runs.c.study == row["id"])) or ""
    return short_recipe(recipe) if recipe else ""


def _list_values(connection: sa.Connection, row: dict[str, Any]) -> dict[str, Any]:
    query = sa.select(trials.c.state, trials.c["values"]).where(trials.c.study == row["id"]).order_by(trials.c.number)
    all_trials = [dict(each) for each in connection.execute(query).mappings()]
    goal = (_objectives(row) or [{}])[0]
    first = [each["values"][0] for each in all_trials if each["state"] == "complete" and each["values"]]
    better = max if goal.get("direction") == "maximize" else min
    so_far = list(accumulate((value for value in first if value is not None), better))
    states = [each["state"] for each in all_trials]
    return {
        **row,
        "owner": row["owner_name"],
        "state": _state(row, all_trials),
        "recipe": _recipe(connection, row),
        "done": sum(state in ("complete", "pruned", "failed") for state in states),
        "running": states.count("running"),
        "planned": _planned(row),
        "sparkline": so_far[:: max(1, len(so_far) // 48)],
        "objective": str(goal.get("metric", "")),
        "direction": f"{goal.get('direction', 'minimize')}d",
        "best": so_far[-1] if so_far else None,
    }


def _as_study(row: Any, all_trials: Sequence[Mapping[str, Any]]) -> StudySnapshot | None:
    """Return the study as figures need it; None if the stored data is not a study of clew."""
    from clew.tuning.config import TuneConfig
    from clew.tuning.snapshot import StudySnapshot

    try:
        tune = _mapping(_mapping(getattr(row, "spec", None)).get("tune"))
        config = TuneConfig.model_validate(tune or {"space": row.space, "objective": _objectives(row)})
        return StudySnapshot(config, [_outcome(each) for each in all_trials])
    except (ValidationError, TypeError, ValueError, KeyError):
        return None


def _outcome(each: Mapping[str, Any]) -> TrialSummary:
    from clew.tuning.snapshot import TrialSummary

    facts = _mapping(each["facts"])
    reports = {int(step): float(value) for step, value in _mapping(each["reports"]).items() if value is not None}
    complete = each["state"] == "complete" and each["values"]
    return TrialSummary(
        number=each["number"],
        state=each["state"],
        settings=dict(each["params"]),
        values=tuple(float(value) for value in each["values"]) if complete else (),
        reports=reports,
        reason=str(facts.get("reason", "")),
        spread=tuple(facts.get("spread", ())),
        seconds=float(facts.get("seconds") or max((each["ended"] or each["updated"]) - each["created"], 0.0)),
        cpu=float(facts.get("cpu") or 0.0),
        started=float(each["created"]),
    )


def _figures(study: StudySnapshot) -> list[dict[str, Any]]:
    from clew.tuning.figures import study_figures

    groups = study_figures(study)
    ordered = [*groups["search"], *groups["parameters"], *groups["training"], *groups["cost"]]
    parts = [part for part in (files.figure_parts(figure) for figure in ordered) if part is not None]
    return [{**part, "title": part["title"].replace("darker: later", "stronger: later")} for part in parts]


def _tiles(
    row: Any, all_trials: Sequence[Mapping[str, Any]], study: StudySnapshot | None, best: Sequence[TrialSummary]
) -> list[dict[str, str]]:
    tiles = []
    if study is not None and len(best) == 1:
        for goal, value in zip(study.config.objectives, best[0].values, strict=False):
            tiles.append({"name": f"best {goal.metric}", "value": number(value), "unit": f"trial {best[0].number}"})
    elif best:
        tiles.append({"name": "Pareto front", "value": str(len(best)), "unit": "trials"})
    for state in ("complete", "running", "pruned", "failed"):
        count = sum(each["state"] == state for each in all_trials)
        if count or state == "complete":
            of = f"of {_planned(row)}" if state == "complete" and _planned(row) else "trials"
            tiles.append({"name": state, "value": str(count), "unit": of})
    if study is not None and all_trials:
        spent = math.fsum(each.seconds for each in study.trials)
        tiles.append({"name": "time of trials", "value": duration(spent), "unit": ""})
    return tiles


def _facts(row: Any, all_trials: Sequence[Mapping[str, Any]]) -> list[str]:
    facts = _mapping(row.facts)
    goals = [f"{each.get('metric', '')} {each.get('direction', 'minimize')}d" for each in _objectives(row)]
    tune = _mapping(_mapping(row.spec).get("tune"))
    settings = [f"{name} {_mapping(tune[name]).get('name', '')}" for name in ("sampler", "pruner") if name in tune]
    external = facts.get(EXTERNAL_FACT) and _state(row, all_trials) != "finished"
    settings += ["trials are proposed elsewhere"] if external else []
    return [*goals, _count(len(_mapping(row.space)), "parameter"), *settings, _count(len(all_trials), "trial")]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _trial_values(each: dict[str, Any]) -> dict[str, Any]:
    facts = _mapping(each["facts"])
    seconds = facts.get("seconds") or (each["ended"] - each["created"] if each["ended"] else None)
    return {
        **each,
        "values": each["values"] or [],
        "settings": _mapping(each["params"]),
        "seconds": seconds,
        "reason": str(facts.get("reason", "")),
    }


def _state(row: Any, all_trials: Sequence[Mapping[str, Any]]) -> str:
    """Return `running`, `waiting` or `finished`."""
    ended = sum(each["state"] in ("complete", "pruned", "failed") for each in all_trials)
    if any(each["state"] == "running" for each in all_trials):
        return "running"
    return "finished" if all_trials and ended >= (_planned(row) or 0) else "waiting"


def _objectives(row: Any) -> list[dict[str, Any]]:
    objectives = row["objectives"] if isinstance(row, dict) else row.objectives
    return [dict(each) for each in objectives or () if isinstance(each, Mapping)]


def _planned(row: Any) -> int | None:
    spec, facts = (row["spec"], row["facts"]) if isinstance(row, dict) else (row.spec, row.facts)
    count = _mapping(facts).get("trials", _mapping(_mapping(spec).get("tune")).get("trials"))
    return count if isinstance(count, int) else None


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
