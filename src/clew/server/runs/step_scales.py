"""What a step of a run is in epochs and samples, for the x axis of curves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from clew.runs.record_metrics import LEAD, finite_number
from clew.server.database.tables import records, streams

_FIRST_RECORDS = 50
"""Records at the start of a stream in which the plan of the training is."""


@dataclass(frozen=True)
class StepScale:
    """Conversion from steps; None if the records do not have it."""

    steps_per_epoch: float | None = None
    samples_per_step: float | None = None


def step_scales(connection: sa.Connection, runs: Iterable[int]) -> dict[int, StepScale]:
    """Return the scales of runs: epochs from the plan of the training, samples from its newest step."""
    query = sa.select(streams.c.run, streams.c.id).where(streams.c.run.in_(list(runs)))
    return {
        run: StepScale(_steps_per_epoch(connection, stream), _samples_per_step(connection, stream))
        for run, stream in connection.execute(query.where(streams.c.name == LEAD)).all()
    }


def _steps_per_epoch(connection: sa.Connection, stream: int) -> float | None:
    c = records.c
    query = sa.select(c.body).where(c.stream == stream, c.seq < _FIRST_RECORDS, c.kind == "plan")
    body = connection.scalar(query.order_by(c.seq.desc()).limit(1))
    plan = {} if body is None else json.loads(body)
    steps, epochs = finite_number(plan.get("steps")), finite_number(plan.get("epochs"))
    return steps / epochs if steps and epochs and steps > 0 and epochs > 0 else None


def _samples_per_step(connection: sa.Connection, stream: int) -> float | None:
    c = records.c
    newest = sa.select(c.kind, c.body).where(c.stream == stream).order_by(c.seq.desc()).limit(_FIRST_RECORDS)
    for kind, body in connection.execute(newest):
        if kind == "step":
            record = json.loads(body)
            step, samples = finite_number(record.get("step")), finite_number(record.get("samples"))
            return samples / step if step and samples and step > 0 and samples > 0 else None
    return None
