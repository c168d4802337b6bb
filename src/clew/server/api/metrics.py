"""Curves of a run, as finely as a screen shows them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from clew.server.api.dependencies import PROBLEMS, Number, ServiceOf, Text, Watcher, one
from clew.server.database.tables import runs
from clew.server.problems import missing
from clew.server.runs.curves import Curve, Window, curve, measured

router = APIRouter(prefix="/api/v1/runs/{number}", tags=["metrics"], responses=PROBLEMS)
_EXTENT = 1e15


class Metric(BaseModel, from_attributes=True):
    """What is known of a curve without reading it."""

    name: str
    count: int
    first: float | None
    last: float | None
    min: float | None
    min_step: int | None
    max: float | None
    max_step: int | None
    step: int
    """Of the newest point."""
    time: float


class Metrics(BaseModel):
    """All of a run's."""

    items: list[Metric]


class Drawn(BaseModel):
    """A curve in columns, a row a point or, where `bins`, a bin: its last point, its least and its greatest value."""

    name: str
    count: int
    """Points in the window, of which rows are made."""
    bins: bool
    step: list[int]
    time: list[float]
    last: list[float | None]
    min: list[float | None]
    max: list[float | None]


class Curves(BaseModel):
    """Several curves."""

    items: list[Drawn]


def _window(
    points: Annotated[int, Query(ge=10, le=5000, description="Rows at most, roughly.")] = 1000,
    axis: Annotated[Literal["step", "time"], Query(description="What `from` and `to` are.")] = "step",
    begin: Annotated[float | None, Query(alias="from", ge=-_EXTENT, le=_EXTENT)] = None,
    end: Annotated[float | None, Query(alias="to", ge=-_EXTENT, le=_EXTENT)] = None,
) -> Window:
    return Window(points, axis, begin, end)


_Window = Annotated[Window, Depends(_window)]


@router.get("/metrics")
def list_metrics(service: ServiceOf, caller: Watcher, number: Number) -> Metrics:
    """A run's metrics: `train/...`, `val/...`, `speed/...` (also shares of the time), `usage/...`."""
    with service.database.read() as connection:
        one(connection, runs, number, caller, "run")
        return Metrics(items=[Metric.model_validate(row) for row in measured(connection, number)])


@router.get("/curves")
def get_curves(
    service: ServiceOf,
    caller: Watcher,
    number: Number,
    window: _Window,
    name: Annotated[list[Text] | None, Query(max_length=200)] = None,
) -> Curves:
    """Several curves at once; all of them where no `name` is given. Names that are not there are left out."""
    with service.database.read() as connection:
        one(connection, runs, number, caller, "run")
        found = [curve(connection, metric, window) for metric in measured(connection, number, name)]
    return Curves(items=[_drawn(each) for each in found])


@router.get("/metrics/{name:path}")
def get_curve(service: ServiceOf, caller: Watcher, number: Number, name: str, window: _Window) -> Drawn:
    """One curve; `from` and `to` zoom."""
    with service.database.read() as connection:
        one(connection, runs, number, caller, "run")
        found = measured(connection, number, [name.replace("\x00", "")])
        if not found:
            raise missing("metric", name)
        return _drawn(curve(connection, found[0], window))


def _drawn(found: Curve) -> Drawn:
    return Drawn.model_construct(**asdict(found))
