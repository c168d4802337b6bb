"""The columns of a list of runs: chosen settings, metrics and facts, or the metrics that most runs have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from clew.runs.query import FACTS, QueryError, resolve_name
from clew.runs.scores import Score
from clew.server.accounts.caller import Caller
from clew.server.database.tables import run_values
from clew.server.runs.evaluations import RunEvaluation
from clew.server.runs.run_values import values_of_runs, visible_names

Cells = dict[int, "Score | str"]
"""The cells of a column by run: a score, or text."""
_AUTOMATIC = 2
"""Metrics that have a column if none is chosen."""
_MAX_CHOSEN = 20
_MAX_GROUPS = 200
_OF_CARD = {"speed": "speed", "seconds": "seconds", "owner": "owner", "recipe": "recipe"}


def split_names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))[:_MAX_CHOSEN]


def metric_columns(cards: Sequence[Mapping[str, Any]], evaluations: Mapping[int, Any]) -> dict[str, Cells]:
    """Return the metrics that most of these runs have, without the loss: cells by run, by name.

    Metrics of evaluations, which have errors, come before those of the newest validation.
    """
    evaluated: dict[str, Cells] = {}
    for number, scores in _scores(evaluations).items():
        for name, score in scores.items():
            if not name.endswith("/loss"):
                evaluated.setdefault(name, {})[number] = score
    validated: dict[str, Cells] = {}
    for card in cards:
        for metric, value in card["metrics"].items():
            if metric != "loss":
                validated.setdefault(f"val/{metric}", {})[card["id"]] = Score(value)
    columns = [*_most_common(evaluated), *_most_common(validated)]
    return dict(columns[:_AUTOMATIC])


def chosen_columns(
    connection: sa.Connection,
    viewer: Caller,
    cards: Sequence[Mapping[str, Any]],
    evaluations: Mapping[int, Mapping[str, RunEvaluation]],
    names: Sequence[str],
) -> dict[str, Cells]:
    """Return the cells of chosen columns by run, by name as it was typed.

    Raises:
        QueryError: no run has a name.
    """
    known, scores = visible_names(connection, viewer, names), _scores(evaluations)
    values = values_of_runs(connection, [card["id"] for card in cards])
    columns: dict[str, Cells] = {}
    for name in names:
        full = resolve_name(name, known)
        if full is None:
            raise QueryError(f"columns: no run has '{name}'")
        column = columns[name] = {}
        for card in cards:
            number = card["id"]
            value = card.get(_OF_CARD.get(full, full)) if full in FACTS else values.get(number, {}).get(full)
            score = scores.get(number, {}).get(full)
            if score is not None or value is not None:
                column[number] = score or (Score(value) if "/" in full else _cell_text(value))
    return columns


def groups(
    connection: sa.Connection, viewer: Caller, selection: sa.Select[Any], names: Sequence[str], metrics: Sequence[str]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Group runs by the values of settings.

    Args:
        connection: An open connection.
        viewer: Who sees the list.
        selection: The ids of the runs.
        names: Settings whose values form groups.
        metrics: Metrics to average.

    Returns:
        The full names of the metrics, and one row per group, the largest first: `values`, `count`, and `means`: the
        mean and the standard deviation of each metric, or None.

    Raises:
        QueryError: no run has a name.
    """
    known = visible_names(connection, viewer, [*names, *metrics])
    keys, measured = (_full_names(part, known) for part in (names, metrics))
    chosen = selection.subquery()
    columns: list[Any] = []
    joined: Any = chosen
    for name in keys:
        table = run_values.alias()
        joined = joined.outerjoin(table, sa.and_(table.c.run == chosen.c.id, table.c.name == known[name]))
        columns += [table.c.number, table.c.text]
    sums: list[Any] = []
    for name in measured:
        table = run_values.alias()
        joined = joined.outerjoin(table, sa.and_(table.c.run == chosen.c.id, table.c.name == known[name]))
        x = table.c.number
        sums += [sa.func.count(x), sa.func.avg(x), sa.func.avg(x * x)]
    count = sa.func.count().label("count")
    query = sa.select(*columns, *sums, count).select_from(joined).group_by(*columns).order_by(count.desc())
    rows = connection.execute(query.limit(_MAX_GROUPS)).all()
    return measured, [_group(list(row), len(keys)) for row in rows]


def _group(row: list[Any], keys: int) -> dict[str, Any]:
    values = [row[2 * place] if row[2 * place] is not None else row[2 * place + 1] for place in range(keys)]
    means: list[Score | None] = []
    for place in range(2 * keys, len(row) - 1, 3):
        count, mean, square = row[place : place + 3]
        variance = max(square - mean * mean, 0.0) * count / (count - 1) if count > 1 else None
        means.append(Score(mean, None if variance is None else math.sqrt(variance)) if count else None)
    return {
        "values": ["–" if value is None else _cell_text(value) for value in values],
        "count": row[-1],
        "means": means,
    }


def _full_names(names: Sequence[str], known: Mapping[str, int]) -> list[str]:
    result = []
    for name in names:
        full = resolve_name(name, known)
        if full is None or full in FACTS:
            raise QueryError(f"group: '{name}' is neither a setting nor a metric of a run")
        result.append(full)
    return result


def _scores(evaluations: Mapping[int, Mapping[str, RunEvaluation]]) -> dict[int, dict[str, Score]]:
    """Return the scores of evaluations by run and name."""
    return {
        number: {f"{each.name}/{metric}": score for each in by_name.values() for metric, score in each.scores.items()}
        for number, by_name in evaluations.items()
    }


def _most_common(columns: Mapping[str, Cells]) -> list[tuple[str, Cells]]:
    return sorted(columns.items(), key=lambda item: -len(item[1]))


def _cell_text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
