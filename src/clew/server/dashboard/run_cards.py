"""Runs as lists show them: a few numbers and a small curve each, of any length of run, quickly."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from clew.server.api.runs import RunRow
from clew.server.dashboard.panels import WAIT
from clew.server.database.tables import points, streams, summary

LOSSES = ("val/loss", "train/loss")
"""What a run is judged by where it says nothing else, the first that it has."""
CURVES = ("train/loss", "val/loss")
"""What its small curve shows, likewise."""
_POINTS = 48
_KEPT = 5000
_curves: dict[int, tuple[int, list[float | None]]] = {}
_lock = threading.Lock()


def glimpses(connection: sa.Connection, rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """Runs with what their lists need besides: loss, best, curve, data wait, progress, duration."""
    known = summaries(connection, [row.id for row in rows])
    return [_glimpse(connection, row, known.get(row.id, {})) for row in rows]


def summaries(connection: sa.Connection, ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    """By run and metric, all that is known of it in one row."""
    found: dict[int, dict[str, Any]] = {}
    for row in connection.execute(sa.select(summary).where(summary.c.run.in_(list(ids))).order_by(summary.c.id)):
        found.setdefault(row.run, {})[row.name] = row
    return found


def _glimpse(connection: sa.Connection, row: RunRow, known: dict[str, Any]) -> dict[str, Any]:
    loss = next((known[name] for name in LOSSES if name in known), None)
    curve = next((known[name] for name in CURVES if name in known), None)
    wait = known.get(WAIT)
    done = row.epochs_done / row.epochs if row.epochs else None
    return {
        **row.model_dump(),
        "owner": row.owner_name,
        "recipe": short_recipe(row.recipe),
        "loss": loss.last if loss is not None else None,
        "best": loss.min if loss is not None else None,
        "spark": [] if curve is None else spark(connection, curve),
        "step": max((each.step for each in known.values()), default=0),
        "speed": row.samples_per_second or None,
        "wait": wait.last if wait is not None else None,
        "epoch": row.epochs_done,
        "progress": done,
        "seconds": seconds(row),
    }


def seconds(row: Any) -> float | None:
    """How long it has taken; one that runs takes until now."""
    if row.begun is None:
        return None
    until = row.ended or (time.time() if row.state == "running" else row.updated)
    return float(max(until - row.begun, 0.0))


def short_recipe(recipe: str) -> str:
    """A recipe's name, without the folder of one that is a file."""
    return recipe.replace("\\", "/").rstrip("/").rpartition("/")[2].removesuffix(".py") or "own loop"


def spark(connection: sa.Connection, metric: Any) -> list[float | None]:
    """A few dozen values of a metric from its beginning to its end; looked up again only when there are more."""
    with _lock:
        found = _curves.get(metric.id)
    if found is not None and found[0] == metric.count:
        return found[1]
    values = _every(connection, metric) if metric.count > 4 * _POINTS else _all(connection, metric)
    with _lock:
        if len(_curves) > _KEPT:
            _curves.clear()
        _curves[metric.id] = (metric.count, values)
    return values


def _all(connection: sa.Connection, metric: Any) -> list[float | None]:
    query = sa.select(points.c.value).where(points.c.metric == metric.id).order_by(points.c.seq)
    values = list(connection.execute(query).scalars())
    every = -(-len(values) // _POINTS) or 1
    return values[::every]


def _every(connection: sa.Connection, metric: Any) -> list[float | None]:
    """One value at each of some places: a look into the index each, however many points there are."""
    end = connection.scalar(sa.select(streams.c.next).where(streams.c.id == metric.stream)) or 0
    rows = [(end * place // _POINTS,) for place in range(_POINTS)]
    places = sa.values(sa.column("at", sa.BigInteger), name="places").data(rows).cte("places")
    here = sa.select(points.c.value).where(points.c.metric == metric.id, points.c.seq >= places.c.at)
    one = here.order_by(points.c.seq).limit(1).correlate(places).scalar_subquery()
    values = list(connection.execute(sa.select(one).select_from(places)).scalars())
    return [value for value in values if value is not None]
