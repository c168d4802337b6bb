"""The list of runs, and the routes of the pages of one run."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query, Request, Response

from clew.runs.folder import STATES
from clew.runs.scores import Score
from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import Number, search_words
from clew.server.api.runs import RunRow, run_rows, visible_runs
from clew.server.dashboard import layout, run
from clew.server.dashboard.run_cards import LOSS_METRICS, run_cards
from clew.server.database.tables import runs, summary, tags, users
from clew.server.runs.evaluations import RunEvaluation, run_evaluations

router = layout.router()
_PAGE = 50
_METRIC_COLUMNS = 2
"""Metrics that have a column."""
SORT_KEYS = ("started", "name", "loss", "seconds")
Offset = Annotated[int, Query(ge=0, le=10**9)]


@router.get("/runs")
def index(
    request: Request,
    viewer: layout.Viewer,
    q: layout.Phrase = "",
    state: layout.Phrase = "",
    tag: layout.Phrase = "",
    sort: layout.Phrase = "-started",
    after: Offset = 0,
) -> Response:
    """The list of runs, searched and sorted."""
    selection: dict[str, Any] = {"q": q, "state": state, "tag": tag, "sort": sort}
    with request.app.state.service.database.read() as connection:
        query = _sorted(_selected(viewer, q, state, tag), sort).limit(_PAGE + 1).offset(after)
        rows = [dict(row) for row in connection.execute(query).mappings()]
        cards = run_cards(connection, run_rows(connection, [_list_values(row) for row in rows[:_PAGE]]))
        evaluations = run_evaluations(connection, [card["id"] for card in cards])
        all_tags = _tags(connection, viewer)
    following = layout.link("/runs", **selection, after=after + _PAGE) if len(rows) > _PAGE else None
    values: dict[str, Any] = {
        "runs": cards,
        "metrics": _metric_columns(cards, evaluations),
        "states": STATES,
        "all_tags": all_tags,
        "next": following,
    }

    def url(**other: Any) -> str:
        return layout.link("/runs", **{**selection, **other})

    return layout.page(request, "runs.html", "runs", **selection, **values, url=url)


@router.get("/runs/{number}")
def curves(request: Request, viewer: layout.Viewer, number: Number) -> Response:
    """The curves of a run."""
    return run.page(request, viewer, number, "curves")


@router.get("/runs/{number}/report")
def report(request: Request, viewer: layout.Viewer, number: Number) -> Response:
    """The report that the run wrote, in a sandbox."""
    return run.report(request, viewer, number)


@router.get("/runs/{number}/{tab}")
def tab_page(request: Request, viewer: layout.Viewer, number: Number, tab: str) -> Response:
    """Another tab of the page of a run."""
    return run.page(request, viewer, number, tab)


def _selected(viewer: Caller, q: str, state: str, tag: str) -> sa.Select[Any]:
    query = visible_runs(viewer)
    if state:
        query = query.where(runs.c.state == state)
    if tag:
        query = query.where(runs.c.id.in_(sa.select(tags.c.run).where(tags.c.name == tag)))
    for word in search_words(q):
        query = query.where(_matches(word))
    return query


def _matches(word: str) -> sa.ColumnElement[bool]:
    columns = (runs.c.name, runs.c.recipe, runs.c.host, runs.c.message, users.c.name)
    conditions = [column.icontains(word, autoescape=True) for column in columns]
    conditions.append(runs.c.id.in_(sa.select(tags.c.run).where(tags.c.name.icontains(word, autoescape=True))))
    if word.isdecimal():
        conditions.append(runs.c.id == min(int(word), 2**63 - 1))
    return sa.or_(*conditions)


def _sorted(query: sa.Select[Any], sort: str) -> sa.Select[Any]:
    """Sort a query; equal runs by age, the newest first."""
    name, descending = sort.lstrip("-"), sort.startswith("-")
    if name not in SORT_KEYS or name == "started":
        return query.order_by(runs.c.id if sort == "started" else runs.c.id.desc())
    key: sa.ColumnElement[Any] = runs.c.name
    if name == "seconds":
        key = sa.func.coalesce(runs.c.ended, runs.c.updated) - runs.c.begun
    elif name == "loss":
        best = sa.select(sa.func.min(summary.c.min)).where(
            summary.c.run == runs.c.id, summary.c.name.in_(LOSS_METRICS[:1])
        )
        key = best.scalar_subquery()
    return query.order_by((key.desc() if descending else key).nulls_last(), runs.c.id.desc())


def _list_values(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in RunRow.model_fields}


def _metric_columns(
    cards: list[dict[str, Any]], evaluations: dict[int, dict[str, RunEvaluation]]
) -> dict[str, dict[int, Score]]:
    """Return the metrics that most of these runs have, without the loss: scores by run, by heading.

    Metrics of evaluations, which have errors, come before those of the newest validation.
    """
    evaluated: dict[str, dict[int, Score]] = {}
    for number, by_name in evaluations.items():
        for evaluation in by_name.values():
            for metric, score in evaluation.scores.items():
                if metric != "loss":
                    evaluated.setdefault(f"{evaluation.name} {metric}", {})[number] = score
    validated: dict[str, dict[int, Score]] = {}
    for card in cards:
        for metric, value in card["metrics"].items():
            if metric != "loss":
                validated.setdefault(metric, {})[card["id"]] = Score(value)
    columns = [*_most_common(evaluated), *_most_common(validated)]
    return dict(columns[:_METRIC_COLUMNS])


def _most_common(columns: dict[str, dict[int, Score]]) -> list[tuple[str, dict[int, Score]]]:
    return sorted(columns.items(), key=lambda item: -len(item[1]))


def _tags(connection: sa.Connection, viewer: Caller) -> list[str]:
    query = sa.select(tags.c.name).join(runs, runs.c.id == tags.c.run).where(viewer.visible(runs)).distinct()
    return list(connection.execute(query.order_by(tags.c.name).limit(200)).scalars())
