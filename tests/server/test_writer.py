"""The one writer: shared commits, refusals without effect on others, and a thread that survives errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from clew.server.accounts.users import add_user
from clew.server.config import ServiceConfig
from clew.server.database.tables import groups, records, runs
from clew.server.database.writer import Transaction
from clew.server.problems import RequestError
from clew.server.runs.ingestion import RecordBatch
from clew.server.service import Service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    opened = Service.open(ServiceConfig(folder=tmp_path / "service"))
    yield opened
    opened.close()


def _add(name: str) -> Callable[[Transaction], int]:
    return lambda transaction: transaction.add(groups, name=name, created=0.0)


def _names(service: Service) -> set[str]:
    with service.database.read() as connection:
        return set(connection.scalars(sa.select(groups.c.name)))


def _held(service: Service) -> threading.Event:
    """Keeps the writer busy until the event is set, so that later writes share a commit."""
    go, started = threading.Event(), threading.Event()

    def hold(_: Transaction) -> None:
        started.set()
        go.wait(30)

    service.writer.submit(hold)
    started.wait(30)
    return go


def test_waiting_writes_share_a_commit(service: Service) -> None:
    go = _held(service)
    futures = [service.writer.submit(_add(f"group-{number}")) for number in range(50)]
    before = service.writer.commits
    go.set()
    assert len({future.result(30) for future in futures}) == 50
    assert service.writer.commits - before == 2
    assert len(_names(service)) == 50


def test_a_refusal_undoes_only_its_own_work(service: Service) -> None:
    def refused(transaction: Transaction) -> None:
        transaction.add(groups, name="half", created=0.0)
        raise RequestError(409, "no")

    go = _held(service)
    good = [service.writer.submit(_add(name)) for name in ("a", "b")]
    bad = service.writer.submit(refused)
    twice = service.writer.submit(_add("a"))
    go.set()
    assert all(future.result(30) for future in good)
    with pytest.raises(RequestError):
        bad.result(30)
    with pytest.raises(sa.exc.IntegrityError):
        twice.result(30)
    assert _names(service) == {"a", "b"}


def test_records_that_share_a_commit_with_a_refusal_are_all_stored(service: Service) -> None:
    """Positions of streams are remembered in memory. After a rollback they must be read again."""

    def make_run(transaction: Transaction) -> int:
        facts: dict[str, Any] = {"recipe": "", "state": "created", "message": "", "host": "", "config": {}}
        facts |= {
            "environment": {},
            "metrics": {},
            "created": 0.0,
            "updated": 0.0,
            "owner": add_user(transaction, "ada"),
        }
        return transaction.add(runs, uid="one", name="one", **facts)

    def refused(_: Transaction) -> None:
        raise RequestError(409, "no")

    run = service.write(make_run)
    go = _held(service)
    batch = RecordBatch(run, {"rank-0": [{"seq": n, "time": 1.0, "kind": "note", "message": ""} for n in range(3)]})
    stored = service.writer.submit_grouped(service.ingestion.ingest, batch)
    bad = service.writer.submit(refused)
    go.set()
    assert stored.result(30) == {"rank-0": 3}
    with pytest.raises(RequestError):
        bad.result(30)
    with service.database.read() as connection:
        assert connection.scalars(sa.select(records.c.seq).order_by(records.c.seq)).all() == [0, 1, 2]


def test_it_outlives_what_goes_wrong_after_a_commit(service: Service) -> None:
    def work(transaction: Transaction) -> None:
        transaction.add(groups, name="done", created=0.0)
        transaction.after_commit.append(lambda: dict[str, None]().__getitem__("nothing"))

    service.writer.submit(work).result(30)
    service.writer.submit(_add("next")).result(30)
    assert _names(service) == {"done", "next"}


def test_too_much_waiting_is_refused(tmp_path: Path) -> None:
    config = ServiceConfig.model_validate({"folder": tmp_path / "busy", "limits": {"waiting": 10}})
    service = Service.open(config)
    go = _held(service)
    futures = [service.writer.submit(_add(f"group-{number}")) for number in range(10)]
    with pytest.raises(RequestError, match="more to write") as refused:
        service.writer.submit(_add("late"))
    assert refused.value.status == 503 and refused.value.retry_after
    go.set()
    assert all(future.result(30) for future in futures)
    service.close()


def test_queued_writes_are_done_before_the_end(tmp_path: Path) -> None:
    service = Service.open(ServiceConfig(folder=tmp_path / "ending"))
    go = _held(service)
    for number in range(20):
        service.writer.submit(_add(f"group-{number}"))
    threading.Timer(0.2, go.set).start()
    service.close()
    again = Service.open(ServiceConfig(folder=tmp_path / "ending"))
    assert len(_names(again)) == 20
    again.close()
