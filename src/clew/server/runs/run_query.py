"""Queries over runs as SQL: filter by settings, metrics and facts, and sort by any of them, through indexes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from clew.runs.query import (
    FACTS,
    SEARCHED,
    Combination,
    Condition,
    Negation,
    Query,
    QueryError,
    Word,
    check_names,
    parse_query,
    resolve_name,
)
from clew.server.accounts.caller import Caller
from clew.server.database.tables import run_values, runs, tags, users
from clew.server.runs.run_values import recent_names, visible_names

_COLUMNS: dict[str, sa.ColumnElement[Any]] = {
    "speed": runs.c.samples_per_second,
    "started": runs.c.begun,
    "owner": sa.select(users.c.name).where(users.c.id == runs.c.owner).scalar_subquery(),
    "seconds": sa.case(
        (runs.c.ended.is_not(None), runs.c.ended), (runs.c.state.in_(("created", "running")), runs.c.updated)
    )
    - runs.c.begun,
}
"""Columns of facts whose names differ."""


@dataclass(frozen=True)
class RunQuery:
    """A query that the database understands."""

    condition: sa.ColumnElement[bool]
    names: Mapping[str, int]
    """The ids of the names of settings and metrics."""


def run_query(connection: sa.Connection, caller: Caller, text: str) -> RunQuery:
    """Return the condition of a query on `runs`.

    Args:
        connection: An open connection.
        caller: Who asks. Only names of runs that the caller may see are known.
        text: The query.

    Raises:
        QueryError: it cannot be understood, or no run has a name in it.
    """
    query = parse_query(text)
    names = visible_names(connection, caller, {condition.name for condition in query.conditions()})
    try:
        check_names(query, text, names)
    except QueryError:
        check_names(query, text, {*names, *recent_names(connection, caller)})  # suggests more names
        raise
    return RunQuery(_condition(query, names), names)


def sort_key(connection: sa.Connection, caller: Caller, name: str) -> sa.ColumnElement[Any] | int:
    """Return what runs are sorted by: a column for a fact, the id of a name for a setting or metric.

    Args:
        connection: An open connection.
        caller: Who asks.
        name: A fact, setting or metric.

    Raises:
        QueryError: no run has this name.
    """
    names = visible_names(connection, caller, {name})
    full = resolve_name(name, names)
    if full is None or full == "tag":
        raise QueryError(f"runs cannot be sorted by '{name}': no run has it")
    return _column(full) if full in FACTS else names[full]


def _column(name: str) -> sa.ColumnElement[Any]:
    return _COLUMNS[name] if name in _COLUMNS else runs.c[name]


def _condition(query: Query, names: Mapping[str, int]) -> sa.ColumnElement[bool]:
    if isinstance(query, Combination):
        if not query.every:
            return sa.or_(sa.false(), *(_condition(part, names) for part in query.parts))
        values = [matching for part in query.parts if (matching := _runs_with_value(part, names)) is not None]
        rest = [_condition(part, names) for part in query.parts if _runs_with_value(part, names) is None]
        # one set of runs for all values: each set that is searched for every row costs as much as building it
        return sa.and_(sa.true(), *([runs.c.id.in_(sa.intersect(*values))] if values else []), *rest)
    if isinstance(query, Negation):
        return sa.not_(sa.func.coalesce(_condition(query.part, names), sa.false()))
    if isinstance(query, Word):
        matches = [_fact(Condition(name, ":", query.text)) for name in SEARCHED]
        return sa.or_(*matches, *([runs.c.id == int(query.text)] if _is_id(query.text) else []))
    matching = _runs_with_value(query, names)
    if matching is not None:
        return runs.c.id.in_(matching)
    assert isinstance(query, Condition)
    return _fact(query)


def _is_id(text: str) -> bool:
    return text.isdecimal() and int(text) < 2**63


def _fact(condition: Condition) -> sa.ColumnElement[bool]:
    if condition.name == "tag":
        matching = sa.select(tags.c.run).where(_compare(tags.c.name, condition.operator, condition.value))
        return runs.c.id.in_(matching)
    if condition.name == "owner":
        named = sa.select(users.c.id).where(_compare(users.c.name, condition.operator, condition.value))
        return runs.c.owner.in_(named)
    column = _column(condition.name)
    if isinstance(column.type, sa.Text):
        return _compare(column, condition.operator, condition.value)
    if condition.operator == ":" or not isinstance(condition.value, float):
        return sa.cast(column, sa.Text) == str(condition.value)
    return _ordered(column, condition.operator, condition.value)


def _runs_with_value(query: Query, names: Mapping[str, int]) -> sa.Select[Any] | None:
    """Return the ids of the runs that meet a condition on a setting or metric; None for any other query."""
    if not isinstance(query, Condition):
        return None
    full = resolve_name(query.name, names)
    assert full is not None, "names were checked"
    return None if full in FACTS else _value(query, names[full])


def _value(condition: Condition, name: int) -> sa.Select[Any]:
    c = run_values.c
    if isinstance(condition.value, float) and condition.operator != ":":
        compared = _ordered(c.number, condition.operator, condition.value)
    elif condition.operator == ":":
        compared = sa.func.coalesce(c.text, sa.cast(c.number, sa.Text)).icontains(str(condition.value), autoescape=True)
    else:
        compared = sa.func.lower(c.text) == str(condition.value).lower()
    return sa.select(c.run).where(c.name == name, compared)


def _compare(column: sa.ColumnElement[Any], operator: str, value: str | float) -> sa.ColumnElement[bool]:
    text = f"{value:g}" if isinstance(value, float) else value
    if operator == ":":
        return column.icontains(text, autoescape=True)
    if operator == "=":
        return sa.func.lower(column) == text.lower()
    raise QueryError(f"'{operator}' compares numbers; use = or : with text")


def _ordered(column: sa.ColumnElement[Any], operator: str, value: float) -> sa.ColumnElement[bool]:
    return {
        "<": column < value,
        "<=": column <= value,
        ">": column > value,
        ">=": column >= value,
        "=": column == value,
    }[operator]
