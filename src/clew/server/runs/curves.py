"""Reading metrics back: all points of a short curve; least, greatest and last of every bin of a long one.

The longest are binned from `spans`, each of which sums up 256 records: what a screen shows of a million points is then
read from four thousand rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from clew.server.database.tables import SPAN, points, spans, summary

_FINE = 64
"""Points a row at which spans are fine enough: fewer spans than a quarter of the rows would show."""


@dataclass(frozen=True)
class Window:
    """The part of a curve that is looked at, and how finely."""

    points: int = 1000
    axis: str = "step"
    begin: float | None = None
    end: float | None = None
    """Both included, in units of the axis."""


@dataclass
class Curve:
    """Columns of equal length, a row a point or a bin. Where a value is not finite it is None."""

    name: str
    count: int
    """Points in the window."""
    bins: bool
    """Whether rows are bins: `step`, `time` and `last` are then those of a bin's last point."""
    step: list[int] = field(default_factory=list)
    time: list[float] = field(default_factory=list)
    last: list[float | None] = field(default_factory=list)
    min: list[float | None] = field(default_factory=list)
    max: list[float | None] = field(default_factory=list)


def measured(connection: sa.Connection, run: int, names: Sequence[str] | None = None) -> list[Any]:
    """What is known of a run's metrics, by name."""
    query = sa.select(summary).where(summary.c.run == run).order_by(summary.c.name)
    if names is not None:
        query = query.where(summary.c.name.in_(names))
    return list(connection.execute(query))


def curve(connection: sa.Connection, metric: Any, window: Window) -> Curve:
    """A metric (a row of `summary`) in a window."""
    if metric.count > _FINE * window.points:
        rows = list(_rough(connection, metric.id, window))
        count = sum(row[-1] for row in rows)
        if count > _FINE * window.points:
            return _binned(metric.name, rows, count, window)
    rows = list(_points(connection, metric.id, window, _seqs(connection, metric.id, window)))
    if len(rows) > window.points:
        return _binned(metric.name, rows, len(rows), window)
    value = [row[3] for row in rows]
    return Curve(metric.name, len(rows), False, [row[1] for row in rows], [row[2] for row in rows], value, value, value)


def _inside(table: sa.Table, metric: int, window: Window) -> list[sa.ColumnElement[bool]]:
    axis = table.c[window.axis]
    found = [table.c.metric == metric]
    found += [axis >= window.begin] if window.begin is not None else []
    found += [axis <= window.end] if window.end is not None else []
    return found


def _points(
    connection: sa.Connection, metric: int, window: Window, more: Sequence[sa.ColumnElement[bool]] = ()
) -> Iterable[Any]:
    c = points.c
    columns: tuple[sa.ColumnElement[Any], ...]
    columns = (c.seq, c.step, c.time, c.value, c.value.label("min"), c.value.label("max"), sa.literal_column("1"))
    query = sa.select(*columns).where(*_inside(points, metric, window), *more)
    return connection.execute(query.order_by(c.seq))


def _rough(connection: sa.Connection, metric: int, window: Window) -> Iterable[Any]:
    """Spans, and behind the last of them points."""
    c = spans.c
    query = sa.select(c.seq, c.step, c.time, c.value, c.min, c.max, c.count).where(*_inside(spans, metric, window))
    yield from connection.execute(query.order_by(c.seq))
    end = connection.execute(sa.select(sa.func.max(c.span)).where(c.metric == metric)).scalar()
    yield from _points(connection, metric, window, (points.c.seq >= (0 if end is None else SPAN * (end + 1)),))


def _seqs(connection: sa.Connection, metric: int, window: Window) -> list[sa.ColumnElement[bool]]:
    """Which records a window can hold, by the spans at its ends: spares reading all others."""
    axis, own = spans.c[window.axis], spans.c.metric == metric
    found = []
    if window.begin is not None:
        first = connection.execute(sa.select(sa.func.min(spans.c.span)).where(own, axis >= window.begin)).scalar()
        found += [points.c.seq >= SPAN * first] if first is not None else []
    if window.end is not None:
        last = connection.execute(sa.select(sa.func.min(spans.c.span)).where(own, axis > window.end)).scalar()
        found += [points.c.seq < SPAN * (last + 1)] if last is not None else []
    return found


def _binned(name: str, rows: Sequence[Any], count: int, window: Window) -> Curve:
    """Bins of equal width along the axis. Rows are in the order they were recorded in."""
    place = 1 if window.axis == "step" else 2
    begin = rows[0][place]
    width = (rows[-1][place] - begin) / window.points or 1.0
    found, now = Curve(name, count, bins=True), None
    for row in rows:
        bin = min(int((row[place] - begin) / width), window.points - 1)
        if bin != now:
            now = bin
            columns: tuple[list[Any], ...] = (found.step, found.time, found.last, found.min, found.max)
            for column, value in zip(columns, row[1:6], strict=True):
                column.append(value)
            continue
        found.step[-1], found.time[-1], found.last[-1] = row[1], row[2], row[3]
        found.min[-1] = _least(found.min[-1], row[4])
        found.max[-1] = _greatest(found.max[-1], row[5])
    return found


def _least(a: float | None, b: float | None) -> float | None:
    return a if b is None or (a is not None and a <= b) else b


def _greatest(a: float | None, b: float | None) -> float | None:
    return a if b is None or (a is not None and a >= b) else b
