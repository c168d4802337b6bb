"""Settings and newest metrics of runs as rows, by which lists of runs are filtered, sorted and grouped.

Names are dotted for settings (`train.optimizer.lr`), `val/METRIC` for the newest validation and `EVALUATION/METRIC`
for evaluations.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from clew.runs.comparison import flatten_settings
from clew.runs.record_metrics import clean_text, finite_number
from clew.server.accounts.caller import Caller
from clew.server.database.tables import run_values, runs, value_names
from clew.server.database.writer import Transaction

_MAX_SETTINGS = 500
"""Settings of a run that are stored as values."""
_MAX_NAME = 200
_MAX_TEXT = 300
_MAX_IDS = 500
"""Ids in one query."""
_RECENT_RUNS = 40
"""Runs whose names are completed and suggested."""
_UPSERT = sa.text(
    "INSERT INTO run_values (run, name, number, text) VALUES (:run, :name, :number, :text) "
    "ON CONFLICT (run, name) DO UPDATE SET number = excluded.number, text = excluded.text"
)
_ADD_NAME = sa.text("INSERT INTO value_names (name) VALUES (:name) ON CONFLICT (name) DO NOTHING")


def setting_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by dotted name."""
    return {clean_text(name, _MAX_NAME): value for name, value in list(flatten_settings(config))[:_MAX_SETTINGS]}


def validation_values(metrics: Mapping[str, float | None]) -> dict[str, Any]:
    """Return the metrics of a validation by name."""
    return {f"val/{name}"[:_MAX_NAME]: value for name, value in metrics.items()}


def evaluation_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics in the record of an evaluation by name."""
    metrics, evaluation = record.get("metrics"), clean_text(record.get("name"), 100) or "evaluation"
    entries = metrics.items() if isinstance(metrics, Mapping) else ()
    scores = {name: finite_number(entry.get("value")) for name, entry in entries if isinstance(entry, Mapping)}
    return {clean_text(f"{evaluation}/{name}", _MAX_NAME): value for name, value in scores.items()}


def save_values(transaction: Transaction, values: Mapping[int, Mapping[str, Any]]) -> None:
    """Insert or replace values, by run and name."""
    ids = _name_ids(transaction, {name for by_name in values.values() for name in by_name})
    rows = [
        {"run": run, "name": ids[name], **_columns(value)}
        for run, by_name in values.items()
        for name, value in by_name.items()
    ]
    if rows:
        transaction.connection.execute(_UPSERT, rows)


def _name_ids(transaction: Transaction, names: Collection[str]) -> dict[str, int]:
    ids = known_names(transaction.connection, names)
    missing = sorted(set(names) - ids.keys())
    if missing:
        transaction.connection.execute(_ADD_NAME, [{"name": name} for name in missing])
        ids |= known_names(transaction.connection, missing)
    return ids


def known_names(connection: sa.Connection, names: Iterable[str] | None = None) -> dict[str, int]:
    """Return the ids of names that some run has; of all names, or of those in `names`."""
    query = sa.select(value_names.c.name, value_names.c.id)
    if names is not None:
        query = query.where(value_names.c.name.in_(list(names)))
    return {row.name: row.id for row in connection.execute(query)}


def visible_names(connection: sa.Connection, caller: Caller, typed: Collection[str]) -> dict[str, int]:
    """Return the ids of names that a typed name can mean, of runs that the caller may see.

    Names of other runs must not count: they would be told to everybody, and `a.lr` of one user would be what `lr` means
    for all.

    Args:
        connection: An open connection.
        caller: Who asks.
        typed: Names as `resolve_name` takes them: whole, or the ends of names.
    """
    ends = tuple(f"{sign}{name}" for name in typed for sign in "./")
    meant = {number: name for name, number in known_names(connection).items() if name in typed or name.endswith(ends)}
    of_run = sa.select(run_values.c.run).join(runs, runs.c.id == run_values.c.run)
    has_run = of_run.where(run_values.c.name == value_names.c.id, caller.visible(runs)).exists()
    numbers, found = list(meant), dict[str, int]()
    for first in range(0, len(numbers), _MAX_IDS):
        chosen = value_names.c.id.in_(numbers[first : first + _MAX_IDS])
        found |= {
            meant[number]: number for number in connection.scalars(sa.select(value_names.c.id).where(chosen, has_run))
        }
    return found


def recent_names(connection: sa.Connection, caller: Caller) -> set[str]:
    """Return the names of the newest runs that the caller may see."""
    newest = sa.select(runs.c.id).where(caller.visible(runs)).order_by(runs.c.id.desc()).limit(_RECENT_RUNS)
    values = values_of_runs(connection, list(connection.scalars(newest)))
    return {name for each in values.values() for name in each}


def values_of_runs(connection: sa.Connection, numbers: Collection[int]) -> dict[int, dict[str, Any]]:
    """Return all values of some runs, by run and name: numbers, or text."""
    query = sa.select(run_values.c.run, value_names.c.name, run_values.c.number, run_values.c.text)
    query = query.join(value_names, value_names.c.id == run_values.c.name).where(run_values.c.run.in_(list(numbers)))
    by_run: dict[int, dict[str, Any]] = {}
    for run, name, number, text in connection.execute(query).all():
        by_run.setdefault(run, {})[name] = text if number is None else number
    return by_run


def _columns(value: Any) -> dict[str, Any]:
    number = finite_number(value)
    if number is not None or isinstance(value, float):
        return {"number": number, "text": None}
    return {"number": None, "text": clean_text(value if isinstance(value, str) else json.dumps(value), _MAX_TEXT)}
