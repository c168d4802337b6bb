"""Long curves in bins, from points and from spans, against all points read one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.server.accounts.users import add_user
from clew.server.config import ServiceConfig
from clew.server.database.tables import SPAN, runs
from clew.server.database.writer import Transaction
from clew.server.runs import curves
from clew.server.runs.curves import Curve, CurveWindow, metric_rows, read_curve
from clew.server.runs.ingestion import RecordBatch
from clew.server.service import Service

COUNT = 10 * SPAN + 77


def _records() -> list[dict[str, Any]]:
    """Losses at random, some not finite; steps and times that are not even; a resume in the middle."""
    rng = np.random.default_rng(1)
    steps, result = 0, list[dict[str, Any]]()
    for seq in range(COUNT):
        if seq == 6 * SPAN + 10:
            steps = result[4 * SPAN]["step"]
            result.append({"seq": seq, "time": 1000.0 + seq, "kind": "resume", "step": steps})
            continue
        steps += int(rng.integers(1, 20))
        value = None if rng.random() < 0.05 else float(rng.normal())
        moment = 1000.0 + seq + float(rng.random())
        result.append({"seq": seq, "time": moment, "kind": "step", "step": steps, "loss": {"loss": value}})
    return result


def _stored_records(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    stored: list[dict[str, Any]] = []
    for record in records:
        if record["kind"] == "resume":
            stored = [each for each in stored if each["step"] <= record["step"]]
        else:
            stored.append(record)
    return stored


def _make(transaction: Transaction) -> None:
    facts: dict[str, Any] = {"recipe": "", "state": "created", "message": "", "host": "", "config": {}}
    facts |= {"environment": {}, "metrics": {}, "created": 0.0, "updated": 0.0}
    transaction.add(runs, owner=add_user(transaction, "ada"), uid="a", name="a", **facts)


@pytest.fixture(scope="module", params=[97, 700], ids=lambda size: f"batches of {size}")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("curves")
    opened = Service.open(ServiceConfig(folder=folder))
    opened.write(_make)
    every = _records()
    for begin in range(0, COUNT, request.param):
        batch = RecordBatch(1, {"rank-0": every[begin : begin + request.param]})
        opened.writer.submit_grouped(opened.ingestion.ingest, batch).result()
    yield opened
    opened.close()


def _drawn(service: Service, window: CurveWindow) -> Curve:
    with service.database.read() as connection:
        (metric,) = metric_rows(connection, 1)
        return read_curve(connection, metric, window)


@pytest.mark.parametrize("fine", [64, 1], ids=["from points", "from spans"])
@pytest.mark.parametrize("axis", ["step", "time"])
@pytest.mark.parametrize("part", [(0.0, 1.0), (0.25, 0.8), (0.75, 0.77)])
def test_bins_are_what_is_in_them(
    service: Service, monkeypatch: pytest.MonkeyPatch, fine: int, axis: str, part: tuple[float, float]
) -> None:
    monkeypatch.setattr(curves, "POINTS_PER_ROW", fine)
    stored = _stored_records(_records())
    place = [each[axis] for each in stored]
    begin, end = (place[0] + share * (place[-1] - place[0]) for share in part)
    whole = part == (0.0, 1.0)
    result = _drawn(service, CurveWindow(50, axis, None if whole else begin, None if whole else end))
    inside = [each for each in stored if whole or begin <= each[axis] <= end]
    slack = (
        SPAN if fine == 1 and result.bins and not whole else 0
    )  # spans at the edge of a window count completely or not at all
    assert abs(result.count - len(inside)) <= slack
    assert len(result.step) == len(inside) if not result.bins else 3 <= len(result.step) <= 50
    values = {(each["step"], each["time"]): each["loss"]["loss"] for each in stored}
    for step, moment, last in zip(result.step, result.time, result.last, strict=True):
        assert values[step, moment] == last
    assert result.time == sorted(result.time)
    if not slack:
        real = [each["loss"]["loss"] for each in inside if each["loss"]["loss"] is not None]
        assert min(value for value in result.min if value is not None) == min(real)
        assert max(value for value in result.max if value is not None) == max(real)
        assert result.step[-1] == inside[-1]["step"]


def test_sums_are_those_of_the_points_that_count(service: Service) -> None:
    real = [each["loss"]["loss"] for each in _stored_records(_records())]
    with service.database.read() as connection:
        (metric,) = metric_rows(connection, 1)
    assert metric.count == len(real)
    assert metric.min == min(value for value in real if value is not None)
    assert metric.max == max(value for value in real if value is not None)
    assert (metric.first, metric.last) == (real[0], real[-1])


def test_a_deleted_run_leaves_nothing(tmp_path: Path) -> None:
    import sqlalchemy as sa

    from clew.server.database.tables import points, records, spans
    from clew.server.runs.recompute import delete_records

    opened = Service.open(ServiceConfig(folder=tmp_path / "erased"))
    opened.write(_make)
    opened.writer.submit_grouped(opened.ingestion.ingest, RecordBatch(1, {"rank-0": _records()[:700]})).result()
    opened.write(lambda transaction: delete_records(transaction, 1))
    with opened.database.read() as connection:
        left = [
            connection.execute(sa.select(sa.func.count()).select_from(t)).scalar() for t in (points, spans, records)
        ]
    opened.close()
    assert left == [0, 0, 0]
