"""A server with its artefacts in a real S3 store."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.server.config import RetentionRule, ServiceConfig
from clew.server.service import Service
from clew.server.storage.retention import apply_retention
from tests.server.conftest import Live
from tests.server.test_records import make
from tests.sites.conftest_s3 import S3

CONTENT = bytes(range(256)) * 40_000


@pytest.fixture
def location(s3: S3, request: pytest.FixtureRequest) -> str:
    import s3fs

    bucket = f"service-{time.time_ns()}"
    s3fs.S3FileSystem().mkdir(bucket)
    return f"s3://{bucket}/clew"


@pytest.fixture
def live(location: str, tmp_path: Path) -> Iterator[Live]:
    server = Live(tmp_path / "service", ("--no-agent", "--store", location)).start()
    yield server
    if server.process is not None and server.process.poll() is None:
        server.stop()


def test_artefacts_go_to_s3_and_come_back_by_range_until_rules_take_them(
    live: Live, location: str, tmp_path: Path
) -> None:
    with live.client() as client:
        run = make(client, "kept")
        where = f"/api/v1/runs/{run}/artefacts/checkpoints/best.safetensors"
        assert client.put(where, content=CONTENT, params={"kind": "checkpoint"}).status_code == 201
        assert client.put(f"/api/v1/runs/{run}/artefacts/same", content=CONTENT).status_code == 201
        assert client.get(where).content == CONTENT
        part = client.get(where, headers={"Range": "bytes=5000000-5000099"})
        assert (part.status_code, part.content) == (206, CONTENT[5000000:5000100])
        assert not list((tmp_path / "service").glob("artefacts/*")), "nothing of it stays here"
        assert client.delete(f"/api/v1/runs/{run}/artefacts/same").status_code == 204
    live.stop(signal.SIGKILL)
    rules = (RetentionRule(kind="checkpoint", days=0),)
    opened = Service.open(ServiceConfig(folder=tmp_path / "service", store=location, retention=rules))
    assert len(list(opened.store.settled())) == 1
    assert apply_retention(opened) == 1
    assert not list(opened.store.settled())
    opened.close()


def test_a_store_that_is_not_there_is_reported_at_the_start(s3: S3, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no such bucket"):
        Live(tmp_path / "service", ("--no-agent", "--store", "s3://nowhere-at-all/clew")).start()
