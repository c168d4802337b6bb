"""Reads metrics as curves: all points of a short curve; smallest, largest and last value per bin of a long one.

The longest curves are binned from `spans`, each of which summarises 256 records. A screen full of a million points is
then read from four thousand rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from clew.server.database.tables import SPAN, points, spans, summary

POINTS_PER_ROW = 64
"""Points per row of the result from which on spans are fine enough."""


@dataclass(frozen=True)
class CurveWindow:
    """The part of a curve to read, and its resolution."""

    points: int = 1000
    """Rows at most, roughly."""
    axis: str = "step"
    """`step` or `time`."""
    begin: float | None = None
    end: float | None = None
    """First and last position on the axis, both included."""


@dataclass
class Curve:
    """A curve in columns of equal length, with one row per point or bin. A value that is not finite is None."""

    name: str
    count: int
    """Points in the window."""
    bins: bool
    """Whether rows are bins: `step`, `time` and `last` then belong to the last point of the bin."""
    step: list[int] = field(default_factory=list)
    time: list[float] = field(default_factory=list)
    last: list[float | None] = field(default_factory=list)
    min: list[float | None] = field(default_factory=list)
    max: list[float | None] = field(default_factory=list)


def metric_rows(connection: sa.Connection, run: int, names: Sequence[str] | None = None) -> list[Any]:
    """Return the rows of `summary` of a run, by name; of all metrics or of those in `names`."""
    query = sa.select(summary).where(summary.c.run == run).order_by(summary.c.name)
    if names is not None:
        query = query.where(summary.c.name.in_(names))
    return list(connection.execute(query))


def read_curve(connection: sa.Connection, metric: Any, window: CurveWindow) -> Curve:
    """Read a curve.

    Args:
        connection: An open connection.
        metric: A row of `summary`.
        window: The part to read.
    """
    if metric.count > POINTS_PER_ROW * window.points:
        rows = list(_span_rows(connection, metric.id, window))
        count = sum(row[-1] for row in rows)
        if count > POINTS_PER_ROW * window.points:
            return _binned(metric.name, rows, count, window)
    rows = list(_point_rows(connection, metric.id, window, _record_range(connection, metric.id, window)))
    if len(rows) > window.points:
        return _binned(metric.name, rows, len(rows), window)
    values = [row[3] for row in rows]
    return Curve(
        metric.name, len(rows), False, [row[1] for row in rows], [row[2] for row in rows], values, values, values
    )


def _in_window(table: sa.Table, metric: int, window: CurveWindow) -> list[sa.ColumnElement[bool]]:
    axis = table.c[window.axis]
    conditions = [table.c.metric == metric]
    conditions += [axis >= window.begin] if window.begin is not None else []
    conditions += [axis <= window.end] if window.end is not None else []
    return conditions


def _point_rows(
    connection: sa.Connection, metric: int, window: CurveWindow, conditions: Sequence[sa.ColumnElement[bool]] = ()
) -> Iterable[Any]:
    c = points.c
    columns: tuple[sa.ColumnElement[Any], ...]
    columns = (c.seq, c.step, c.time, c.value, c.value.label("min"), c.value.label("max"), sa.literal_column("1"))
    query = sa.select(*columns).where(*_in_window(points, metric, window), *conditions)
    return connection.execute(query.order_by(c.seq))


def _span_rows(connection: sa.Connection, metric: int, window: CurveWindow) -> Iterable[Any]:
    """The spans, followed by the points after the last span."""
    c = spans.c
    query = sa.select(c.seq, c.step, c.time, c.value, c.min, c.max, c.count).where(*_in_window(spans, metric, window))
    yield from connection.execute(query.order_by(c.seq))
    end = connection.execute(sa.select(sa.func.max(c.span)).where(c.metric == metric)).scalar()
    yield from _point_rows(connection, metric, window, (points.c.seq >= (0 if end is None else SPAN * (end + 1)),))


def _record_range(connection: sa.Connection, metric: int, window: CurveWindow) -> list[sa.ColumnElement[bool]]:
    """Limit the sequence numbers by the spans at the ends of the window, so that fewer rows are read."""
    axis, of_metric = spans.c[window.axis], spans.c.metric == metric
    conditions = []
    if window.begin is not None:
        query = sa.select(sa.func.min(spans.c.span)).where(of_metric, axis >= window.begin)
        first = connection.execute(query).scalar()
        conditions += [points.c.seq >= SPAN * first] if first is not None else []
    if window.end is not None:
        query = sa.select(sa.func.min(spans.c.span)).where(of_metric, axis > window.end)
        last = connection.execute(query).scalar()
        conditions += [points.c.seq < SPAN * (last + 1)] if last is not None else []
    return conditions


def _binned(name: str, rows: Sequence[Any], count: int, window: CurveWindow) -> Curve:
    """Bins of equal width along the axis. Rows are in the order in which they were recorded."""
    column = 1 if window.axis == "step" else 2
    begin = rows[0][column]
    width = (rows[-1][column] - begin) / window.points or 1.0
    curve, current = Curve(name, count, bins=True), None
    for row in rows:
        bin_number = min(int((row[column] - begin) / width), window.points - 1)
        if bin_number != current:
            current = bin_number
            columns: tuple[list[Any], ...] = (curve.step, curve.time, curve.last, curve.min, curve.max)
            for values, value in zip(columns, row[1:6], strict=True):
                values.append(value)
            continue
        curve.step[-1], curve.time[-1], curve.last[-1] = row[1], row[2], row[3]
        curve.min[-1] = _smaller(curve.min[-1], row[4])
        curve.max[-1] = _larger(curve.max[-1], row[5])
    return curve


def _smaller(a: float | None, b: float | None) -> float | None:
    return a if b is None or (a is not None and a <= b) else b


def _larger(a: float | None, b: float | None) -> float | None:
    return a if b is None or (a is not None and a >= b) else b
