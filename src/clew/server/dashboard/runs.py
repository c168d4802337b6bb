"""Runs: the list, and the pages of one."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query, Request, Response

from clew.runs.folder import STATES
from clew.server.accounts.callers import Caller
from clew.server.api.dependencies import Number
from clew.server.api.runs import RunRow, listed, rows
from clew.server.dashboard import layout, run
from clew.server.dashboard.run_cards import LOSSES, glimpses
from clew.server.database.tables import runs, summary, tags, users

router = layout.router()
_PAGE = 50
_SHOWN = 2
"""Metrics that get a column."""
SORTS = ("begun", "name", "loss", "seconds")
Place = Annotated[int, Query(ge=0, le=10**9)]


@router.get("/runs")
def index(
    request: Request,
    viewer: layout.Viewer,
    q: layout.Phrase = "",
    state: layout.Phrase = "",
    tag: layout.Phrase = "",
    sort: layout.Phrase = "-begun",
    after: Place = 0,
) -> Response:
    """Those the viewer sees, searched and sorted."""
    asked: dict[str, Any] = {"q": q, "state": state, "tag": tag, "sort": sort}
    with request.app.state.service.database.read() as connection:
        query = _sorted(_chosen(viewer, q, state, tag), sort).limit(_PAGE + 1).offset(after)
        found = [dict(row) for row in connection.execute(query).mappings()]
        shown = glimpses(connection, rows(connection, [_plain(row) for row in found[:_PAGE]]))
        all_tags = _tags(connection, viewer)
    more = layout.link("/runs", **asked, after=after + _PAGE) if len(found) > _PAGE else None
    values: dict[str, Any] = {
        "runs": shown,
        "metrics": _common(shown),
        "states": STATES,
        "all_tags": all_tags,
        "next": more,
    }

    def url(**other: Any) -> str:
        return layout.link("/runs", **{**asked, **other})

    return layout.page(request, "runs.html", "runs", **asked, **values, url=url)


@router.get("/runs/{number}")
def curves(request: Request, viewer: layout.Viewer, number: Number) -> Response:
    """Its curves."""
    return run.page(request, viewer, number, "curves")


@router.get("/runs/{number}/report")
def report(request: Request, viewer: layout.Viewer, number: Number) -> Response:
    """The page it wrote, in a box of its own."""
    return run.report(request, viewer, number)


@router.get("/runs/{number}/{tab}")
def part(request: Request, viewer: layout.Viewer, number: Number, tab: str) -> Response:
    """Another part of its page."""
    return run.page(request, viewer, number, tab)


def _chosen(viewer: Caller, q: str, state: str, tag: str) -> sa.Select[Any]:
    query = listed(viewer)
    if state:
        query = query.where(runs.c.state == state)
    if tag:
        query = query.where(runs.c.id.in_(sa.select(tags.c.run).where(tags.c.name == tag)))
    for word in q.split():
        query = query.where(_has(word))
    return query


def _has(word: str) -> sa.ColumnElement[bool]:
    places = (runs.c.name, runs.c.recipe, runs.c.host, runs.c.message, users.c.name)
    found = [place.icontains(word, autoescape=True) for place in places]
    found.append(runs.c.id.in_(sa.select(tags.c.run).where(tags.c.name.icontains(word, autoescape=True))))
    if word.isdecimal():
        found.append(runs.c.id == min(int(word), 2**63 - 1))
    return sa.or_(*found)


def _sorted(query: sa.Select[Any], sort: str) -> sa.Select[Any]:
    """Newest first among equals."""
    name, falling = sort.lstrip("-"), sort.startswith("-")
    if name not in SORTS or name == "begun":
        return query.order_by(runs.c.id if sort == "begun" else runs.c.id.desc())
    key: sa.ColumnElement[Any] = runs.c.name
    if name == "seconds":
        key = sa.func.coalesce(runs.c.ended, runs.c.updated) - runs.c.begun
    elif name == "loss":
        best = sa.select(sa.func.min(summary.c.min)).where(summary.c.run == runs.c.id, summary.c.name.in_(LOSSES[:1]))
        key = best.scalar_subquery()
    return query.order_by((key.desc() if falling else key).nulls_last(), runs.c.id.desc())


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in RunRow.model_fields}


def _common(shown: list[dict[str, Any]]) -> list[str]:
    """The metrics that most of these runs have, the loss aside."""
    names = [name for run in shown for name in run["metrics"] if name != "loss"]
    return sorted(dict.fromkeys(names), key=lambda name: -names.count(name))[:_SHOWN]


def _tags(connection: sa.Connection, viewer: Caller) -> list[str]:
    query = sa.select(tags.c.name).join(runs, runs.c.id == tags.c.run).where(viewer.seen(runs)).distinct()
    return list(connection.execute(query.order_by(tags.c.name).limit(200)).scalars())
