"""The page that plots runs against their settings and metrics: scatter and parallel coordinates with brushing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, Request, Response

from clew.server.dashboard import layout
from clew.server.dashboard.panels import higher_is_better
from clew.server.dashboard.run_list import RunSelection, listed, run_selection
from clew.server.database.tables import runs
from clew.server.runs.run_values import values_of_runs

router = layout.router()
_MAX_RUNS = 1000
_MAX_COLUMNS = 40
_MAX_CHOICES = 12
"""Different texts of a setting; one with more is not drawn."""
_SHOWN_SETTINGS, _SHOWN_METRICS = 5, 3
"""Axes of the parallel coordinates at first."""
_LOG_RATIO = 20
"""An axis is logarithmic if its values span more than this factor."""


@router.get("/explore")
def explore(
    request: Request, viewer: layout.Viewer, selection: Annotated[RunSelection, Depends(run_selection)]
) -> Response:
    """Plots of the runs that a list shows: the newest thousand of them."""
    with request.app.state.service.database.read() as connection:
        numbers = listed(connection, viewer, selection, limit=_MAX_RUNS)
        rows = connection.execute(sa.select(runs.c.id, runs.c.name).where(runs.c.id.in_(numbers)))
        names = {row.id: row.name for row in rows}
        data = explore_data(connection, {number: names[number] for number in numbers})
    back = layout.link("/runs", **selection.link())
    return layout.page(request, "explore.html", "runs", explore=data, back=back, selection=selection)


def explore_data(connection: sa.Connection, names: Mapping[int, str]) -> dict[str, Any]:
    """Return the runs and the settings and metrics in which they differ.

    Args:
        connection: An open connection.
        names: Names of the runs by number.

    Returns:
        `columns`: name, and either `choices` or `low`, `high` and `log`; `shown`: whether it is an axis at first.
        `runs`: number, name and one value per column.
    """
    values = values_of_runs(connection, list(names))
    keys = sorted({key for each in values.values() for key in each}, key=_order)
    columns: list[dict[str, Any]] = []
    for key in keys:
        column = _column(key, [each.get(key) for each in values.values()])
        if column is not None:
            columns.append(column)
    settings = [each for each in columns if "/" not in each["name"]]
    metrics = [each for each in columns if "/" in each["name"]]
    for each in [*settings[:_SHOWN_SETTINGS], *metrics[-_SHOWN_METRICS:]]:
        each["shown"] = True
    chosen = [*settings, *metrics][:_MAX_COLUMNS] if len(columns) > _MAX_COLUMNS else columns
    rows = [
        {"id": number, "name": name, "values": [_cell(each, values.get(number, {})) for each in chosen]}
        for number, name in names.items()
    ]
    return {"columns": chosen, "runs": rows}


def _cell(column: Mapping[str, Any], values: Mapping[str, Any]) -> float | str | None:
    """Return the value of a run on an axis; None if it has none, or a number has none (`null`)."""
    value = values.get(column["name"])
    if value is None or "choices" not in column:
        return None if isinstance(value, str) else value
    return str(value)


def _order(key: str) -> tuple[bool, bool, int, str]:
    """Settings first, then metrics; a metric whose better values are known and the loss at the end."""
    metric = "/" in key
    return metric, metric and higher_is_better(key) is not None, 0 if not metric else -len(key), key


def _column(name: str, values: Sequence[Any]) -> dict[str, Any] | None:
    """Return an axis; None if all runs have the same value, or too many different texts."""
    present = set(values) - {None}
    if len(present) < 2:
        return None
    numbers = {value for value in present if not isinstance(value, str)}
    if len(numbers) > 1 and present - numbers <= {"null"}:
        present = numbers
    if present != numbers:
        choices = sorted({str(value) for value in present})
        return {"name": name, "choices": choices, "shown": False} if len(choices) <= _MAX_CHOICES else None
    low, high = min(present), max(present)
    return {"name": name, "low": low, "high": high, "log": low > 0 and high / low > _LOG_RATIO, "shown": False}
