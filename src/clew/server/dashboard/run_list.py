"""Which runs the list shows, in which order: selection, sorting by any setting or metric, trials under their study."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query

from clew.server.accounts.caller import Caller
from clew.server.api.runs import RunRow, run_rows, visible_runs
from clew.server.dashboard.layout import Phrase
from clew.server.dashboard.run_cards import LOSS_METRICS
from clew.server.database.tables import run_values, runs, studies, summary, tags
from clew.server.runs.run_query import run_query, sort_key

_Text = Annotated[str, Query(max_length=2000)]
_BEST_LOSS = (
    sa.select(sa.func.min(summary.c.min))
    .where(summary.c.run == runs.c.id, summary.c.name == LOSS_METRICS[0])
    .scalar_subquery()
)
"""What the column "Best loss" shows."""


@dataclass(frozen=True)
class RunSelection:
    """What the link of a list says."""

    q: str = ""
    """A query, see `clew.runs.query`."""
    state: str = ""
    tag: str = ""
    sort: str = "-started"
    """A fact, setting or metric; with a minus the largest or newest first."""
    columns: str = ""
    """Settings and metrics with a column, separated by commas; empty: some metrics."""
    group: str = ""
    """Settings whose values form groups, separated by commas."""
    trials: str = ""
    """`all`: trials of studies are listed one by one."""
    archived: str = ""
    """`only` or `with`: archived runs; `deleted`: deleted ones."""

    def link(self, **changes: Any) -> dict[str, str]:
        """Return the parameters of a link with changes; defaults are left out."""
        changed = vars(replace(self, **changes))
        return {name: value for name, value in changed.items() if value != getattr(RunSelection, name)}

    @property
    def plain(self) -> bool:
        """Whether runs are neither searched nor grouped: then trials are folded under their study."""
        return not (self.q or self.state or self.tag or self.trials or self.group)


def run_selection(
    q: _Text = "",
    state: Phrase = "",
    tag: Phrase = "",
    sort: Phrase = "-started",
    columns: _Text = "",
    group: Phrase = "",
    trials: Phrase = "",
    archived: Phrase = "",
) -> RunSelection:
    """Return the selection in the link of a request."""
    return RunSelection(q, state, tag, sort, columns, group, trials, archived)


def selected(connection: sa.Connection, viewer: Caller, selection: RunSelection) -> sa.Select[Any]:
    """Return the statement of the ids of the runs of a selection, without an order.

    Raises:
        QueryError: the query cannot be understood.
    """
    query = sa.select(runs.c.id).where(viewer.visible(runs), *_marked(runs, selection.archived))
    if selection.state:
        query = query.where(runs.c.state == selection.state)
    if selection.tag:
        query = query.where(runs.c.id.in_(sa.select(tags.c.run).where(tags.c.name == selection.tag)))
    if selection.plain:
        other = runs.alias()
        trials = sa.select(sa.func.max(other.c.id)).where(other.c.study == runs.c.study)
        newest = trials.where(viewer.visible(other), *_marked(other, selection.archived)).scalar_subquery()
        query = query.where(sa.or_(runs.c.study.is_(None), runs.c.id == newest))
    return query.where(run_query(connection, viewer, selection.q).condition) if selection.q.strip() else query


def _marked(table: sa.FromClause, archived: str) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of runs that are current, archived or deleted."""
    if archived == "deleted":
        return [table.c.deleted.is_not(None)]
    current: list[sa.ColumnElement[bool]] = [table.c.deleted.is_(None)]
    if archived == "with":
        return current
    return [*current, table.c.archived.is_not(None) if archived == "only" else table.c.archived.is_(None)]


def listed(
    connection: sa.Connection, viewer: Caller, selection: RunSelection, *, limit: int, offset: int = 0
) -> list[int]:
    """Return the numbers of a part of the runs in their order. Runs without the value of the sort key come last.

    Args:
        connection: An open connection.
        viewer: Who sees the list.
        selection: Which runs, in which order.
        limit: Number of runs.
        offset: Runs to skip.

    Raises:
        QueryError: the query cannot be understood, or no run has the sort key.
    """
    ids = selected(connection, viewer, selection)
    descending, name = selection.sort.startswith("-"), selection.sort.lstrip("-")
    key = _BEST_LOSS if name == "loss" else sort_key(connection, viewer, name)
    if isinstance(key, int):
        c = run_values.c
        with_value = ids.join(run_values, sa.and_(c.run == runs.c.id, c.name == key))
        without = ids.where(runs.c.id.not_in(sa.select(c.run).where(c.name == key)))
        columns: list[sa.ColumnElement[Any]] = [c.number, c.text]
    elif isinstance(key, sa.Column) and selection.plain:
        # without NULLS LAST in the order, PostgreSQL too reads the first of many runs from the index of the column
        with_value, without, columns = ids.where(key.is_not(None)), ids.where(key.is_(None)), [key]
    else:
        order = (key.desc() if descending else key).nulls_last()
        return list(connection.scalars(ids.order_by(order, runs.c.id.desc()).limit(limit).offset(offset)))
    ordered = with_value.order_by(*(each.desc() if descending else each for each in columns), runs.c.id.desc())
    numbers = list(connection.scalars(ordered.limit(limit).offset(offset)))
    if len(numbers) < limit:
        counted = sa.select(sa.func.count()).select_from(with_value.subquery())
        count = offset + len(numbers) if numbers or not offset else connection.scalar(counted) or 0
        rest = without.order_by(runs.c.id.desc()).limit(limit - len(numbers)).offset(max(offset - count, 0))
        numbers += connection.scalars(rest)
    return numbers


def rows_of(connection: sa.Connection, viewer: Caller, numbers: Sequence[int]) -> list[RunRow]:
    """Return the rows of runs in the order of their numbers."""
    rows = connection.execute(visible_runs(viewer).where(runs.c.id.in_(numbers))).mappings()
    by_number = {row["id"]: _values(row) for row in rows}
    return run_rows(connection, [by_number[number] for number in numbers])


def study_facts(connection: sa.Connection, numbers: Collection[int]) -> dict[int, Mapping[str, Any]]:
    """Return name, number of runs and best loss of studies, by id. Deleted runs do not count."""
    of_study = sa.and_(runs.c.study == studies.c.id, runs.c.deleted.is_(None))
    count = sa.select(sa.func.count()).where(of_study).scalar_subquery().label("count")
    best = sa.select(sa.func.min(summary.c.min)).join(runs, runs.c.id == summary.c.run)
    best = best.where(of_study, summary.c.name == LOSS_METRICS[0])
    columns = (studies.c.id, studies.c.name, count, best.scalar_subquery().label("best"))
    query = sa.select(*columns).where(studies.c.id.in_(list(numbers)))
    return {row["id"]: dict(row) for row in connection.execute(query).mappings()} if numbers else {}


def _values(row: Any) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in RunRow.model_fields}
