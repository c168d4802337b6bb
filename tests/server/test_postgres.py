"""The same service on a real PostgreSQL: the tests of users, records and artefacts with this database."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server import test_accounts, test_records, test_studies
from tests.server.conftest import Live
from tests.server.postgres import running, why_not

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
for _module in (test_accounts, test_records, test_studies):
    globals().update({name: value for name, value in vars(_module).items() if name.startswith("test_")})
run = test_records.run


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running() as url:
        yield url


@pytest.fixture(scope="module")
def shared_server(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Replaces the server on SQLite."""
    live = Live(tmp_path_factory.mktemp("service") / "service", ("--no-agent", "--database", postgres)).start()
    yield live
    if live.process is not None and live.process.poll() is None:
        live.stop()


def test_connections_closed_by_the_database_are_reopened(client: httpx.Client, postgres: str) -> None:
    number = test_records.make(client, "cut")
    with psycopg.connect(postgres, autocommit=True) as other:
        others = "pid <> pg_backend_pid() AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')"
        other.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
    time.sleep(1.5)
    assert test_records.send(client, number, test_records.start(), test_records.step(1, 1)) == {"rank-0": 2}
    assert test_records.loss(client, number)["count"] == 1


def test_zz_it_is_killed_and_starts_again_with_everything(shared_server: Live) -> None:
    with shared_server.client() as client:
        number = test_records.make(client, "survivor")
        batch = [test_records.start(), *(test_records.step(n, n) for n in range(1, 40))]
        test_records.send(client, number, *batch)
    shared_server.stop(signal.SIGKILL)
    shared_server.start()
    with shared_server.client() as client:
        assert test_records.send(client, number, *batch) == {"rank-0": 40}
        assert test_records.loss(client, number)["count"] == 39


def test_zz_one_database_has_one_server(shared_server: Live, postgres: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="another server uses this database"):
        Live(tmp_path / "service", ("--no-agent", "--database", postgres)).start()
