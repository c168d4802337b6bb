"""Routes for metrics and curves of a run, with as many points as a screen can show."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from clew.server.api.dependencies import PROBLEMS, Number, RunReader, ServiceOf, Text, visible_row
from clew.server.database.tables import runs
from clew.server.problems import not_found
from clew.server.runs.curves import Curve, CurveWindow, metric_rows, read_curve

router = APIRouter(prefix="/api/v1/runs/{number}", tags=["metrics"], responses=PROBLEMS)
_MAX_BOUND = 1e15


class MetricInfo(BaseModel, from_attributes=True):
    """A summary of a metric."""

    name: str
    count: int
    first: float | None
    last: float | None
    min: float | None
    min_step: int | None
    max: float | None
    max_step: int | None
    step: int
    """Step of the newest point."""
    time: float


class MetricList(BaseModel):
    """The metrics of a run."""

    items: list[MetricInfo]


class CurveData(BaseModel):
    """A curve in columns, one row per point or, with `bins`, per bin: its last point, smallest and largest value."""

    name: str
    count: int
    """Points in the window."""
    bins: bool
    step: list[int]
    time: list[float]
    last: list[float | None]
    min: list[float | None]
    max: list[float | None]


class CurveList(BaseModel):
    """Several curves."""

    items: list[CurveData]


def _window(
    points: Annotated[int, Query(ge=10, le=5000, description="Rows at most, roughly.")] = 1000,
    axis: Annotated[Literal["step", "time"], Query(description="The unit of `from` and `to`.")] = "step",
    begin: Annotated[float | None, Query(alias="from", ge=-_MAX_BOUND, le=_MAX_BOUND)] = None,
    end: Annotated[float | None, Query(alias="to", ge=-_MAX_BOUND, le=_MAX_BOUND)] = None,
) -> CurveWindow:
    return CurveWindow(points, axis, begin, end)


_Window = Annotated[CurveWindow, Depends(_window)]


@router.get("/metrics")
def list_metrics(service: ServiceOf, caller: RunReader, number: Number) -> MetricList:
    """List the metrics of a run: `train/...`, `val/...`, `speed/...` (also fractions of the time) and `usage/...`."""
    with service.database.read() as connection:
        visible_row(connection, runs, number, caller, "run")
        return MetricList(items=[MetricInfo.model_validate(row) for row in metric_rows(connection, number)])


@router.get("/curves")
def get_curves(
    service: ServiceOf,
    caller: RunReader,
    number: Number,
    window: _Window,
    name: Annotated[list[Text] | None, Query(max_length=200)] = None,
) -> CurveList:
    """Return several curves; all of them without `name`. Unknown names are left out."""
    with service.database.read() as connection:
        visible_row(connection, runs, number, caller, "run")
        curves = [read_curve(connection, metric, window) for metric in metric_rows(connection, number, name)]
    return CurveList(items=[_curve_data(curve) for curve in curves])


@router.get("/metrics/{name:path}")
def get_curve(service: ServiceOf, caller: RunReader, number: Number, name: str, window: _Window) -> CurveData:
    """Return one curve; `from` and `to` select a part of it."""
    with service.database.read() as connection:
        visible_row(connection, runs, number, caller, "run")
        metrics = metric_rows(connection, number, [name.replace("\x00", "")])
        if not metrics:
            raise not_found("metric", name)
        return _curve_data(read_curve(connection, metrics[0], window))


def _curve_data(curve: Curve) -> CurveData:
    return CurveData.model_construct(**asdict(curve))
