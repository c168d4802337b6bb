"""Which commits wait for the disk, what survives kill -9, and a write-ahead log that does not grow."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from clew.server.config import ServiceConfig
from clew.server.database.wal_checkpoint import copy_log
from clew.server.database.writer import Transaction
from clew.server.runs.ingestion import RecordBatch
from clew.server.service import Service
from tests.server.conftest import Live
from tests.server.postgres import running, why_not


@pytest.fixture(params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Service, str, str, str]]:
    """A service; the query for how a commit is stored; its answer with and without waiting for the disk."""
    folder = tmp_path / "service"
    if request.param == "sqlite":
        opened = Service.open(ServiceConfig(folder=folder))
        yield opened, "PRAGMA synchronous", "2", "1"
        opened.close()
        return
    if why_not():
        pytest.skip(why_not())
    with running() as url:
        opened = Service.open(ServiceConfig(folder=folder, database=url))
        yield opened, "SHOW synchronous_commit", "on", "off"
        opened.close()


def test_only_what_clients_send_again_does_not_wait_for_the_disk(service: tuple[Service, str, str, str]) -> None:
    opened, query, waits, does_not_wait = service

    def setting(transaction: Transaction) -> str:
        return str(transaction.scalar(sa.text(query)))

    def settings(transaction: Transaction, items: Sequence[Any]) -> list[str]:
        return [setting(transaction) for _ in items]

    assert opened.write(setting) == waits
    assert opened.writer.submit_grouped(settings, None, durable=False).result() == does_not_wait
    assert opened.write(setting) == waits


def test_the_end_of_a_run_is_on_disk_with_all_before_it() -> None:
    step, end = ({"seq": seq, "time": 1.0, "kind": kind} for seq, kind in enumerate(("step", "end")))
    assert not RecordBatch(1, {"rank-0": [step], "usage-0": [step]}).ends_run
    assert RecordBatch(1, {"usage-0": [step], "rank-0": [step, end]}).ends_run


def test_answered_records_survive_kill_9(server: Live) -> None:
    records = [{"seq": seq, "time": 1e9 + seq, "kind": "step", "step": seq, "loss": {"loss": 0.5}} for seq in range(30)]
    with server.client() as client:
        run = client.post("/api/v1/runs", json={"uid": "a" * 32, "name": "first", "recipe": "tagger"}).json()["id"]
        for begin in range(0, 30, 10):
            body = {"streams": {"rank-0": records[begin : begin + 10]}}
            assert client.post(f"/api/v1/runs/{run}/records", json=body).json() == {"next": {"rank-0": begin + 10}}
            server.stop(signal.SIGKILL)
            server.start()
        assert client.get(f"/api/v1/runs/{run}/records").json()["items"] == records


def test_the_log_begins_again_while_the_writer_writes(tmp_path: Path) -> None:
    path = tmp_path / "database.sqlite"
    with closing(_opened(path)) as writer, closing(_opened(path)) as copier:
        writer.execute("CREATE TABLE numbers (value TEXT)")
        sizes = []
        for _ in range(5):
            for _ in range(20):
                writer.execute("INSERT INTO numbers VALUES (?)", ("x" * 5000,))
            assert copy_log(copier, restart_pages=20)
            sizes.append(path.with_name(f"{path.name}-wal").stat().st_size)
        assert len(set(sizes)) <= 2 and writer.execute("SELECT count(*) FROM numbers").fetchone() == (100,)


def test_the_writer_does_not_wait_for_a_copy_that_waits_for_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "database.sqlite"
    with closing(_opened(path)) as writer, closing(_opened(path)) as copier, closing(_opened(path)) as reader:
        writer.execute("CREATE TABLE numbers (value INTEGER)")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM numbers").fetchall()
        writer.execute("INSERT INTO numbers VALUES (1)")
        assert not copy_log(copier, restart_pages=1)
        writer.execute("INSERT INTO numbers VALUES (2)")
        reader.execute("COMMIT")
        assert copy_log(copier, restart_pages=1)


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    return connection
