"""Runs as lists show them: a few numbers and a small curve each, read quickly for runs of any length."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from clew.server.api.runs import RunRow
from clew.server.database.tables import points, streams, summary
from clew.server.runs.step_scales import StepScale, step_scales

LOSS_METRICS = ("val/loss", "train/loss")
"""Metrics that measure a run; the first that it has counts."""
SPARKLINE_METRICS = ("train/loss", "val/loss")
"""Metrics of the small curve; the first that the run has counts."""
_POINTS = 48
_SILENCE = 600.0
"""Seconds without a record after which the time of a run that seems to run is not counted."""
_MAX_CACHED = 5000
_sparkline_cache: dict[int, tuple[int, list[float | None]]] = {}
_lock = threading.Lock()


def run_cards(connection: sa.Connection, rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """Return runs with what lists show in addition: loss, best loss, curve, data wait, progress and duration."""
    summaries = metric_summaries(connection, [row.id for row in rows])
    return [_run_card(connection, row, summaries.get(row.id, {})) for row in rows]


def curve_runs(connection: sa.Connection, cards: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what scripts need of runs to draw curves: id, name, start, and how steps become epochs and samples."""
    scales = step_scales(connection, [card["id"] for card in cards])
    facts = ("id", "name", "started")
    return [{**{n: card[n] for n in facts}, **asdict(scales.get(card["id"], StepScale()))} for card in cards]


def metric_summaries(connection: sa.Connection, ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the rows of `summary`, by run and metric."""
    by_run: dict[int, dict[str, Any]] = {}
    for row in connection.execute(sa.select(summary).where(summary.c.run.in_(list(ids))).order_by(summary.c.id)):
        by_run.setdefault(row.run, {})[row.name] = row
    return by_run


def _run_card(connection: sa.Connection, row: RunRow, summaries: dict[str, Any]) -> dict[str, Any]:
    loss = next((summaries[name] for name in LOSS_METRICS if name in summaries), None)
    curve = next((summaries[name] for name in SPARKLINE_METRICS if name in summaries), None)
    return {
        **row.model_dump(),
        "owner": row.owner_name,
        "recipe": short_recipe(row.recipe),
        "loss": loss.last if loss is not None else None,
        "best": loss.min if loss is not None else None,
        "sparkline": [] if curve is None else sparkline_values(connection, curve),
        "step": max((each.step for each in summaries.values()), default=0),
        "speed": row.samples_per_second or None,
        "wait": row.times.shares.get("data wait") if row.times is not None else None,
        "epoch": row.epochs_done,
        "progress": row.epochs_done / row.epochs if row.epochs else None,
        "seconds": seconds(row),
        "left": seconds_left(row),
    }


def seconds(row: Any) -> float | None:
    """Return the duration of a run; of one that runs, until now, or shortly after its newest record arrived."""
    if row.started is None:
        return None
    if row.ended is None and row.state not in ("running", "created"):
        return None if row.times is None else float(sum(row.times.parts.values()))  # it ended without a record
    until = row.ended or (min(time.time(), row.updated + _SILENCE) if row.state == "running" else row.updated)
    return float(max(until - row.started, 0.0))


def seconds_left(row: Any) -> float | None:
    """Return the time that a run still needs at its speed so far; None if that is not known."""
    if row.state != "running" or row.started is None or not row.epochs or not row.epochs_done:
        return None
    per_epoch = row.times.seconds_per_epoch if row.times is not None else None
    validated = max(row.epochs - row.epochs_done, 0)
    return float(validated * (per_epoch or (row.updated - row.started) / row.epochs_done))


def short_recipe(recipe: str) -> str:
    """Return the name of a recipe, without the folder if it is a file."""
    return recipe.replace("\\", "/").rstrip("/").rpartition("/")[2].removesuffix(".py") or "own loop"


def sparkline_values(connection: sa.Connection, metric: Any) -> list[float | None]:
    """Return a few dozen values of a metric from begin to end. They are cached until there are more points."""
    with _lock:
        cached = _sparkline_cache.get(metric.id)
    if cached is not None and cached[0] == metric.count:
        return cached[1]
    values = _sampled_values(connection, metric) if metric.count > 4 * _POINTS else _all_values(connection, metric)
    with _lock:
        if len(_sparkline_cache) > _MAX_CACHED:
            _sparkline_cache.clear()
        _sparkline_cache[metric.id] = (metric.count, values)
    return values


def _all_values(connection: sa.Connection, metric: Any) -> list[float | None]:
    query = sa.select(points.c.value).where(points.c.metric == metric.id).order_by(points.c.seq)
    values = list(connection.execute(query).scalars())
    every = -(-len(values) // _POINTS) or 1
    return values[::every]


def _sampled_values(connection: sa.Connection, metric: Any) -> list[float | None]:
    """Read one value at each of 48 positions through the index, however many points there are."""
    end = connection.scalar(sa.select(streams.c.next).where(streams.c.id == metric.stream)) or 0
    rows = [(end * index // _POINTS,) for index in range(_POINTS)]
    positions = sa.values(sa.column("at", sa.BigInteger), name="positions").data(rows).cte("positions")
    following = sa.select(points.c.value).where(points.c.metric == metric.id, points.c.seq >= positions.c.at)
    first = following.order_by(points.c.seq).limit(1).correlate(positions).scalar_subquery()
    values = list(connection.execute(sa.select(first).select_from(positions)).scalars())
    return [value for value in values if value is not None]
