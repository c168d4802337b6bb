"""The list of runs, and the routes of the pages of one run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from clew.runs.folder import STATES
from clew.runs.query import FACTS, QueryError
from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import Number
from clew.server.dashboard import layout, run
from clew.server.dashboard.run_cards import run_cards
from clew.server.dashboard.run_columns import chosen_columns, groups, metric_columns, split_names
from clew.server.dashboard.run_list import RunSelection, listed, rows_of, run_selection, selected, study_facts
from clew.server.database.tables import runs, tags, views
from clew.server.runs.evaluations import run_evaluations
from clew.server.runs.run_values import recent_names, values_of_runs

router = layout.router()
_PAGE = 50
_NEWEST_RUNS = 40
"""Newest runs whose metrics are chosen for groups."""
_GROUP_METRICS = 4
Offset = Annotated[int, Query(ge=0, le=10**9)]


@router.get("/runs")
def index(
    request: Request,
    viewer: layout.Viewer,
    selection: Annotated[RunSelection, Depends(run_selection)],
    after: Offset = 0,
) -> Response:
    """The list of runs: searched, sorted, with chosen columns, or grouped by settings."""
    with request.app.state.service.database.read() as connection:
        values: dict[str, Any] = {"all_tags": _tags(connection, viewer), "views": _views(connection, viewer)}
        values["names"] = _completions(connection, viewer, values["all_tags"])
        try:
            values |= _content(connection, viewer, selection, after)
            status = 200
        except QueryError as error:
            values |= {"error": str(error), "runs": []}
            status = 422
    more = values.pop("more", False)

    def url(**changes: Any) -> str:
        return layout.link("/runs", **selection.link(**changes))

    following = layout.link("/runs", **selection.link(), after=after + _PAGE) if more else None
    values |= {"selection": selection, "states": STATES, "next": following, "url": url}
    return layout.page(request, "runs.html", "runs", status=status, **values)


def _content(connection: sa.Connection, viewer: Caller, selection: RunSelection, after: int) -> dict[str, Any]:
    """Return the rows of the list, or the groups."""
    names = split_names(selection.columns)
    if selection.group:
        query = selected(connection, viewer, selection)
        metrics = names or _common_metrics(connection, query)
        measured, rows = groups(connection, viewer, query, split_names(selection.group), metrics[:_GROUP_METRICS])
        return {"runs": [], "groups": rows, "group_names": split_names(selection.group), "group_metrics": measured}
    numbers, note = _sorted(connection, viewer, selection, after)
    cards = run_cards(connection, rows_of(connection, viewer, numbers[:_PAGE]))
    evaluations = run_evaluations(connection, [card["id"] for card in cards])
    columns = (
        chosen_columns(connection, viewer, cards, evaluations, names) if names else metric_columns(cards, evaluations)
    )
    known = study_facts(connection, {card["study"] for card in cards if card["study"] is not None})
    return {"runs": cards, "metrics": columns, "studies": known, "more": len(numbers) > _PAGE, "note": note}


def _sorted(connection: sa.Connection, viewer: Caller, selection: RunSelection, after: int) -> tuple[list[int], str]:
    """Return the numbers of the runs of a page, and a note if no run has the name that they should be sorted by."""
    selected(connection, viewer, selection)  # a mistake in the query is reported as such
    try:
        return listed(connection, viewer, selection, limit=_PAGE + 1, offset=after), ""
    except QueryError as error:
        by_start = replace(selection, sort=RunSelection.sort)
        newest = listed(connection, viewer, by_start, limit=_PAGE + 1, offset=after)
        return newest, f"{error}; the newest are first instead."


def _common_metrics(connection: sa.Connection, query: sa.Select[Any]) -> list[str]:
    newest = query.order_by(runs.c.id.desc()).limit(_NEWEST_RUNS)
    values = values_of_runs(connection, list(connection.execute(newest).scalars()))
    names = [name for each in values.values() for name, value in each.items() if "/" in name and value is not None]
    return sorted(dict.fromkeys(names), key=lambda name: (-names.count(name), name.endswith("loss"), name))


def _completions(connection: sa.Connection, viewer: Caller, all_tags: Iterable[str]) -> list[str]:
    """Return the words that the filter completes: settings and metrics of the newest runs, facts, states and tags."""
    names = sorted(recent_names(connection, viewer))
    words = [*(f"state:{each}" for each in STATES), *(f"tag:{each}" for each in all_tags)]
    return [*names, *FACTS, *words]


def _views(connection: sa.Connection, viewer: Caller) -> list[Any]:
    query = sa.select(views.c.id, views.c.name, views.c.query).where(viewer.visible(views)).order_by(views.c.name)
    return list(connection.execute(query.limit(50)))


@router.get("/runs/{number}")
def curves(request: Request, viewer: layout.Viewer, number: Number) -> Response:
    """The curves of a run."""
    return run.page(request, viewer, number, "curves")


@router.get("/runs/{number}/report")
def report(request: Request, viewer: layout.Viewer, number: Number) -> Response:
    """The report that the run wrote, in a sandbox."""
    return run.report(request, viewer, number)


@router.get("/runs/{number}/console")
def console(
    request: Request, viewer: layout.Viewer, number: Number, after: Annotated[str, Query(max_length=4000)] = ""
) -> Response:
    """What the run printed since the position `after`, and the next position. The page of its log asks for it."""
    part = run.output_after(request, viewer, number, after)
    return JSONResponse({"text": part.text, "next": part.next})


@router.get("/runs/{number}/{tab}")
def tab_page(request: Request, viewer: layout.Viewer, number: Number, tab: str) -> Response:
    """Another tab of the page of a run."""
    return run.page(request, viewer, number, tab)


def _tags(connection: sa.Connection, viewer: Caller) -> list[str]:
    query = sa.select(tags.c.name).join(runs, runs.c.id == tags.c.run).where(viewer.visible(runs)).distinct()
    return list(connection.execute(query.order_by(tags.c.name).limit(200)).scalars())
