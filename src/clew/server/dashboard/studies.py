"""Studies: the list, and a page for each."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any

import sqlalchemy as sa
from fastapi import Query, Request, Response
from pydantic import ValidationError

from clew.server.api.dependencies import Number, one
from clew.server.dashboard import files
from clew.server.dashboard import layout as frame
from clew.server.dashboard.formatting import length, number
from clew.server.dashboard.run_cards import short_recipe
from clew.server.database.tables import studies, trials, users

if TYPE_CHECKING:
    from clew.tuning.snapshot import StudySnapshot, TrialSummary

router = frame.router()
_PAGE = 50
_LISTED = 1000
_KEPT = 32
"""Studies whose figures are kept."""
After = Annotated[int | None, Query(ge=1, le=2**63 - 1)]


@router.get("/studies")
def index(request: Request, viewer: frame.Viewer, after: After = None) -> Response:
    """The newest first."""
    query = sa.select(studies, users.c.name.label("person")).join(users, users.c.id == studies.c.owner)
    query = query.where(viewer.seen(studies)).order_by(studies.c.id.desc()).limit(_PAGE + 1)
    if after is not None:
        query = query.where(studies.c.id < after)
    with request.app.state.service.database.read() as connection:
        found = [dict(row) for row in connection.execute(query).mappings()]
        shown = [_line(connection, row) for row in found[:_PAGE]]
    more = frame.link("/studies", after=found[_PAGE - 1]["id"]) if len(found) > _PAGE else None
    return frame.page(request, "studies.html", "studies", studies=shown, next=more)


@router.get("/studies/{number}")
def study(request: Request, viewer: frame.Viewer, number: Number) -> Response:
    """One: how the search goes, what matters, every trial."""
    with request.app.state.service.database.read() as connection:
        row = one(connection, studies, number, viewer, "study")
        found = _trials(connection, number)
    best, tiles, figures = request.app.state.drawn.get(row, lambda: _drawn(row, found))
    told = {"id": row.id, "name": row.name, "state": _state(row, found)}
    values: dict[str, Any] = {"study": told, "job": row.job, "trials": [_shown(each) for each in reversed(found)]}
    values["trials"] = values["trials"][:_LISTED]
    values |= {"goals": [str(each.get("metric", "")) for each in _objectives(row)], "keys": list(_mapping(row.space))}
    values |= {"best": best, "figures": figures, "tiles": tiles, "facts": _facts(row, found)}
    return frame.page(request, "study.html", "studies", **values)


class Drawn:
    """What was made of studies for their pages: the front, importances and figures take long, and change only when the
    study does.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, Any]] = {}
        self._lock = threading.Lock()

    def get(self, row: Any, make: Callable[[], Any]) -> Any:
        """For a study's row; made anew where the study changed since."""
        updated, found = self._known.get(row.id, (None, None))
        if updated == row.updated:
            return found
        found = make()
        with self._lock:
            self._known.pop(row.id, None)
            self._known[row.id] = row.updated, found
            for old in list(self._known)[:-_KEPT]:
                del self._known[old]
        return found


def _drawn(row: Any, found: list[dict[str, Any]]) -> tuple[list[int], list[dict[str, str]], list[dict[str, Any]]]:
    """The numbers of the best trials, tiles and figures."""
    seen = _seen(row, found)
    best = [] if seen is None else seen.best()
    return [each.number for each in best], _tiles(row, found, seen, best), [] if seen is None else _figures(seen)


def _trials(connection: sa.Connection, study: int) -> list[dict[str, Any]]:
    query = sa.select(trials).where(trials.c.study == study).order_by(trials.c.number)
    return [dict(row) for row in connection.execute(query).mappings()]


def _line(connection: sa.Connection, row: dict[str, Any]) -> dict[str, Any]:
    query = sa.select(trials.c.state, trials.c["values"]).where(trials.c.study == row["id"]).order_by(trials.c.number)
    found = [dict(each) for each in connection.execute(query).mappings()]
    goal = (_objectives(row) or [{}])[0]
    first = [each["values"][0] for each in found if each["state"] == "complete" and each["values"]]
    choose = max if goal.get("direction") == "maximize" else min
    so_far = list(accumulate((value for value in first if value is not None), choose))
    states = [each["state"] for each in found]
    return {
        **row,
        "owner": row["person"],
        "state": _state(row, found),
        "recipe": short_recipe(str(_mapping(row["spec"]).get("recipe", ""))) if row["spec"] else "",
        "done": sum(state in ("complete", "pruned", "failed") for state in states),
        "running": states.count("running"),
        "wanted": _wanted(row),
        "spark": so_far[:: max(1, len(so_far) // 48)],
        "objective": str(goal.get("metric", "")),
        "direction": f"{goal.get('direction', 'minimize')}d",
        "best": so_far[-1] if so_far else None,
    }


def _seen(row: Any, found: Sequence[Mapping[str, Any]]) -> StudySnapshot | None:
    """The study as figures need it; None where what is stored is no study of clew's form."""
    from clew.tuning.config import TuneConfig
    from clew.tuning.snapshot import StudySnapshot

    try:
        tune = _mapping(_mapping(getattr(row, "spec", None)).get("tune"))
        config = TuneConfig.model_validate(tune or {"space": row.space, "objective": _objectives(row)})
        return StudySnapshot(config, [_outcome(each) for each in found])
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


def _figures(seen: StudySnapshot) -> list[dict[str, Any]]:
    from clew.tuning.figures import study_figures

    drawn = study_figures(seen)
    ordered = [*drawn["search"], *drawn["parameters"], *drawn["training"], *drawn["cost"]]
    found = [shown for shown in (files.apart(each) for each in ordered) if shown is not None]
    return [{**each, "title": each["title"].replace("darker: later", "stronger: later")} for each in found]


def _tiles(
    row: Any, found: Sequence[Mapping[str, Any]], seen: StudySnapshot | None, best: Sequence[TrialSummary]
) -> list[dict[str, str]]:
    tiles = []
    if seen is not None and len(best) == 1:
        for goal, value in zip(seen.config.objectives, best[0].values, strict=False):
            tiles.append({"name": f"best {goal.metric}", "value": number(value), "unit": f"trial {best[0].number}"})
    elif best:
        tiles.append({"name": "Pareto front", "value": str(len(best)), "unit": "trials"})
    for state in ("complete", "running", "pruned", "failed"):
        count = sum(each["state"] == state for each in found)
        if count or state == "complete":
            of = f"of {_wanted(row)}" if state == "complete" and _wanted(row) else "trials"
            tiles.append({"name": state, "value": str(count), "unit": of})
    if seen is not None and found:
        spent = math.fsum(each.seconds for each in seen.trials)
        tiles.append({"name": "time of trials", "value": length(spent), "unit": ""})
    return tiles


def _facts(row: Any, found: Sequence[Mapping[str, Any]]) -> list[str]:
    facts = _mapping(row.facts)
    goals = [f"{each.get('metric', '')} {each.get('direction', 'minimize')}d" for each in _objectives(row)]
    tune = _mapping(_mapping(row.spec).get("tune"))
    known = [f"{name} {_mapping(tune[name]).get('name', '')}" for name in ("sampler", "pruner") if name in tune]
    known += ["goes on elsewhere"] if facts.get("elsewhere") and _state(row, found) != "finished" else []
    return [*goals, f"{len(_mapping(row.space))} parameters", *known, f"{len(found)} trials"]


def _shown(each: dict[str, Any]) -> dict[str, Any]:
    facts = _mapping(each["facts"])
    took = facts.get("seconds") or (each["ended"] - each["created"] if each["ended"] else None)
    return {
        **each,
        "values": each["values"] or [],
        "settings": _mapping(each["params"]),
        "seconds": took,
        "reason": str(facts.get("reason", "")),
    }


def _state(row: Any, found: Sequence[Mapping[str, Any]]) -> str:
    """Whether anything is still to come."""
    ended = sum(each["state"] in ("complete", "pruned", "failed") for each in found)
    if any(each["state"] == "running" for each in found):
        return "running"
    return "finished" if found and ended >= (_wanted(row) or 0) else "waiting"


def _objectives(row: Any) -> list[dict[str, Any]]:
    given = row["objectives"] if isinstance(row, dict) else row.objectives
    return [dict(each) for each in given or () if isinstance(each, Mapping)]


def _wanted(row: Any) -> int | None:
    spec, facts = (row["spec"], row["facts"]) if isinstance(row, dict) else (row.spec, row.facts)
    told = _mapping(facts).get("trials", _mapping(_mapping(spec).get("tune")).get("trials"))
    return told if isinstance(told, int) else None


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
