"""Reading metrics back: all points of a short curve, or least, greatest and last of every bin of a long one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from clew.service.database.tables import points, summary

AXES = ("step", "time")


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
    inside = _inside(metric.id, window)
    if window.begin is None and window.end is None:
        count = metric.count
    else:
        count = connection.execute(sa.select(sa.func.count()).select_from(points).where(*inside)).scalar_one()
    if count <= window.points:
        return _whole(connection, metric, inside)
    return _binned(connection, metric, inside, count, window)


def _inside(metric: int, window: Window) -> list[sa.ColumnElement[bool]]:
    axis = points.c[window.axis]
    found = [points.c.metric == metric]
    found += [axis >= window.begin] if window.begin is not None else []
    found += [axis <= window.end] if window.end is not None else []
    return found


def _whole(connection: sa.Connection, metric: Any, inside: list[sa.ColumnElement[bool]]) -> Curve:
    query = sa.select(points.c.step, points.c.time, points.c.value).where(*inside).order_by(points.c.seq)
    found = Curve(metric.name, 0, bins=False)
    for step, moment, value in connection.execute(query):
        found.step.append(step)
        found.time.append(moment)
        found.last.append(value)
    found.min = found.max = found.last
    found.count = len(found.step)
    return found


def _binned(
    connection: sa.Connection, metric: Any, inside: list[sa.ColumnElement[bool]], count: int, window: Window
) -> Curve:
    """Bins of equal width in steps; along time, whose width nobody knows beforehand, of equal number of records."""
    key = points.c.step if window.axis == "step" else points.c.seq
    ends = connection.execute(sa.select(sa.func.min(key), sa.func.max(key)).where(*inside)).one()
    width = (ends[1] - ends[0]) // window.points + 1
    each = ((key - ends[0]) // sa.literal_column(str(width))).label("bin")
    values = (sa.func.min(points.c.value), sa.func.max(points.c.value), sa.func.max(points.c.seq))
    bins = sa.select(*(value.label(name) for value, name in zip(values, ("least", "greatest", "seq"), strict=True)))
    binned = bins.where(*inside).group_by(each).subquery()
    end = sa.and_(points.c.metric == metric.id, points.c.seq == binned.c.seq)
    columns = (points.c.step, points.c.time, points.c.value, binned.c.least, binned.c.greatest)
    query = sa.select(*columns).select_from(binned.join(points, end)).order_by(points.c.seq)
    found = Curve(metric.name, count, bins=True)
    for step, moment, value, least, greatest in connection.execute(query):
        found.step.append(step)
        found.time.append(moment)
        found.last.append(value)
        found.min.append(least)
        found.max.append(greatest)
    return found
