"""Artefacts: stored once by content, downloaded by range, limited by quota, removed by rule."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from clew.errors import ConfigError
from clew.server.config import RetentionRule, ServiceConfig
from clew.server.service import Service
from clew.server.storage.artefact_store import ArtefactStore
from clew.server.storage.range_response import RemoteContent, range_response
from clew.server.storage.retention import apply_retention
from tests.server.conftest import Live
from tests.server.test_records import make

CONTENT = bytes(range(256)) * 1000


def _put(client: httpx.Client, run: int, name: str, content: bytes = CONTENT, **more: Any) -> httpx.Response:
    return client.put(f"/api/v1/runs/{run}/artefacts/{name}", content=content, params=more)


@pytest.fixture
def run(client: httpx.Client, request: pytest.FixtureRequest) -> int:
    return make(client, request.node.name)


def test_a_file_comes_back_whole_or_by_range(client: httpx.Client, run: int) -> None:
    response = _put(client, run, "checkpoints/best.safetensors", kind="checkpoint")
    assert response.status_code == 201
    assert response.json()["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    where = f"/api/v1/runs/{run}/artefacts/checkpoints/best.safetensors"
    assert client.get(where).content == CONTENT
    part = client.get(where, headers={"Range": "bytes=1000-1999"})
    assert (part.status_code, part.content) == (206, CONTENT[1000:2000])
    assert part.headers["Content-Range"] == f"bytes 1000-1999/{len(CONTENT)}"
    assert client.get(where, headers={"Range": "bytes=-16"}).content == CONTENT[-16:]
    assert client.get(where, headers={"Range": f"bytes={len(CONTENT)}-"}).status_code == 416
    assert "attachment" in client.get(where).headers["Content-Disposition"]


def test_the_same_content_is_stored_once(shared_server: Live, client: httpx.Client, run: int) -> None:
    content = os.urandom(1000)
    for name in ("a", "b", "c/d"):
        assert _put(client, run, name, content).status_code == 201
    assert _put(client, run, "a", content).status_code == 200
    result = hashlib.sha256(content).hexdigest()
    assert [path.name for path in (shared_server.folder / "artefacts").rglob(result)] == [result]


def test_content_that_differs_from_its_announcement_is_refused(client: httpx.Client, run: int) -> None:
    assert _put(client, run, "a", sha256="0" * 64).status_code == 422
    assert client.get(f"/api/v1/runs/{run}/artefacts/a").status_code == 404


def test_an_uploaded_page_runs_in_a_sandbox(client: httpx.Client, run: int) -> None:
    _put(client, run, "report.html", b"<script>alert(1)</script>", kind="report")
    response = client.get(f"/api/v1/runs/{run}/artefacts/report.html")
    policy = response.headers["Content-Security-Policy"]
    assert "sandbox allow-scripts;" in policy and "allow-same-origin" not in policy and "default-src 'none'" in policy
    saved = client.get(f"/api/v1/runs/{run}/artefacts/report.html", params={"save": True})
    assert "attachment" in saved.headers["Content-Disposition"]


def test_a_quota_is_a_limit(client: httpx.Client, person: Any) -> None:
    ada = person("ada")
    name, run = ada.get("/api/v1/me").json()["name"], make(ada, "quota")
    assert client.patch(f"/api/v1/users/{name}", json={"quota_bytes": 1000}).status_code == 200
    assert _put(ada, run, "small", b"a" * 600).status_code == 201
    assert _put(ada, run, "more", b"b" * 600).status_code == 413
    assert _put(ada, run, "small", b"c" * 900).status_code == 413, "while it arrives, there are two of it"
    assert _put(ada, run, "small", b"c" * 300).status_code == 200
    assert _put(ada, run, "small", b"d" * 600).status_code == 200
    assert ada.get(f"/api/v1/runs/{run}/artefacts/small").content == b"d" * 600
    assert ada.get("/api/v1/overview").json()["quota"] == 1000
    assert ada.delete(f"/api/v1/runs/{run}/artefacts/small").status_code == 204
    assert _put(ada, run, "more", b"b" * 600).status_code == 201


def _wait_for_upload(server: Live, size: int) -> None:
    """Wait until the server has written so many bytes of an unfinished upload: then it has checked the quota."""
    incoming = server.folder / "artefacts" / "incoming"
    for _ in range(600):
        if any(path.stat().st_size >= size for path in incoming.glob("*")):
            return
        time.sleep(0.05)
    raise AssertionError("the upload did not arrive")


def _user_with_quota(client: httpx.Client, person: Any, quota: int) -> tuple[httpx.Client, int]:
    ada: httpx.Client = person("ada")
    name, run = ada.get("/api/v1/me").json()["name"], make(ada, "shared")
    assert client.patch(f"/api/v1/users/{name}", json={"quota_bytes": quota}).status_code == 200
    return ada, run


def test_uploads_at_the_same_time_share_the_quota(shared_server: Live, client: httpx.Client, person: Any) -> None:
    (ada, run), other, second = _user_with_quota(client, person, 100_000), person("ada"), []

    def slowly() -> Iterator[bytes]:
        yield b"a" * 60_000
        _wait_for_upload(shared_server, 50_000)
        second.append(_put(other, run, "second", b"b" * 60_000).status_code)
        yield b"a" * 30_000

    assert ada.put(f"/api/v1/runs/{run}/artefacts/first", content=slowly()).status_code == 201
    assert second == [413]
    assert _put(ada, run, "third", b"c" * 10_000).status_code == 201
    assert _put(ada, run, "fourth", b"d").status_code == 413


def test_an_upload_that_ended_meanwhile_counts(shared_server: Live, client: httpx.Client, person: Any) -> None:
    """Its bytes were free when the slow upload started, and are not any more when it ends."""
    (ada, run), other = _user_with_quota(client, person, 100_000), person("ada")

    def slowly() -> Iterator[bytes]:
        yield b"a" * 20_000
        _wait_for_upload(shared_server, 10_000)
        assert _put(other, run, "quick", b"b" * 60_000).status_code == 201
        yield b"a" * 40_000

    assert ada.put(f"/api/v1/runs/{run}/artefacts/slow", content=slowly()).status_code == 413
    assert [each["name"] for each in ada.get(f"/api/v1/runs/{run}/artefacts").json()["items"]] == ["quick"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    rules = (RetentionRule(kind="checkpoint", days=30), RetentionRule(kind="log", days=0, keep_tagged=False))
    opened = Service.open(ServiceConfig(folder=tmp_path / "service", retention=rules))
    yield opened
    opened.close()


def test_rules_take_what_is_old_and_not_tagged_and_its_content(service: Service) -> None:
    from clew.server.accounts.users import add_user
    from clew.server.database.tables import artefacts, blobs, runs, tags
    from clew.server.database.writer import Transaction

    def fill(transaction: Transaction) -> None:
        owner = add_user(transaction, "ada")
        facts: dict[str, Any] = {
            "recipe": "",
            "state": "finished",
            "message": "",
            "host": "",
            "config": {},
            "environment": {},
        }
        facts |= {"metrics": {}, "created": 0.0, "updated": 0.0, "owner": owner}
        one, two = (transaction.add(runs, uid=name, name=name, **facts) for name in ("one", "two"))
        transaction.execute(tags.insert().values(run=two, name="paper"))
        kinds = [(one, "checkpoint", 40), (one, "checkpoint", 1), (two, "checkpoint", 40), (two, "log", 1)]
        for number, (run, kind, days) in enumerate([*kinds, (one, "plot", 99)]):
            sha256 = f"{number:064d}"
            path = service.store.path(sha256)
            assert path is not None
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
            os.utime(path, (0, 0))
            created = time.time() - 86400 * days
            transaction.execute(blobs.insert().values(sha256=sha256, bytes=1, created=created))
            more = {"name": str(number), "kind": kind, "type": "", "blob": sha256, "bytes": 1, "created": created}
            transaction.add(artefacts, owner=owner, run=run, **more)

    service.write(fill)
    assert apply_retention(service) == 2
    left = [number for number in range(5) if service.store.has(f"{number:064d}")]
    assert left == [1, 2, 4]
    assert apply_retention(service) == 0


def test_the_output_of_jobs_counts_and_is_removed_like_logs(service: Service) -> None:
    from clew.server.accounts.users import add_user
    from clew.server.database.tables import jobs
    from clew.server.database.writer import Transaction
    from clew.server.jobs.job_logs import JobLogs
    from clew.server.storage.quota import stored_bytes

    logs, now = JobLogs(service.config.folder), time.time()

    def fill(transaction: Transaction) -> int:
        owner = add_user(transaction, "ada")
        more: dict[str, Any] = {"kind": "train", "spec": {}, "arguments": [], "resources": {}, "priority": 0}
        more |= {"attempt": 1, "attempts": 1, "reason": "", "created": now, "updated": now, "printed": 5}
        for number, state in enumerate(("done", "running"), start=1):
            transaction.add(
                jobs, owner=owner, name=state, state=state, ended=now - 1 if state == "done" else None, **more
            )
            logs.append(number, 1, 0, b"hello")
        return owner

    owner = service.write(fill)
    with service.database.read() as connection:
        assert stored_bytes(connection, owner) == 10
    assert (apply_retention(service), apply_retention(service)) == (1, 0)
    assert [logs.read(number, 1).text for number in (1, 2)] == ["", "hello"]
    with service.database.read() as connection:
        assert stored_bytes(connection, owner) == 5


def test_contents_that_no_row_knows_go_when_they_are_old(service: Service) -> None:
    stray = service.store.path("a" * 64)
    assert stray is not None
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"x")
    fresh = _done(service.store.put(_parts(b"b"), limit=10)).sha256
    apply_retention(service)
    assert [service.store.has(each) for each in ("a" * 64, fresh)] == [False, True]


def _done(work: Coroutine[Any, Any, Any]) -> Any:
    """In a separate thread: tests with browsers leave a running event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def _parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def test_a_store_may_lie_elsewhere(tmp_path: Path) -> None:
    """`file:` is a folder; `memory:` behaves like S3, without files on this machine."""
    for location in (f"file://{tmp_path}/there", f"memory://{tmp_path.name}"):
        store = ArtefactStore(location, tmp_path / "scratch")
        store.claim("a")
        blob = _done(store.put(_parts(b"hello ", b"world"), limit=100))
        assert store.has(blob.sha256) and store.read(blob.sha256) == b"hello world"
        assert store.read(blob.sha256, 2, 7) == b"llo w"
        store.delete(blob.sha256)
        assert store.has(blob.sha256), "it came in only just now"
        later = ArtefactStore(location, tmp_path / "scratch")
        assert list(later.settled()) == [blob.sha256]
        later.delete(blob.sha256)
        assert not later.has(blob.sha256) and not list(tmp_path.glob("*/incoming/*"))
        with pytest.raises(ConfigError, match="another server uses it"):
            ArtefactStore(location, tmp_path).claim("b")
    assert (tmp_path / "there" / blob.sha256[:2]).is_dir()


@pytest.mark.parametrize(
    ("range_header", "status", "result"),
    [
        ("", 200, "0123456789"),
        ("bytes=2-4", 206, "234"),
        ("bytes=7-", 206, "789"),
        ("bytes=-2", 206, "89"),
        ("bytes=8-99", 206, "89"),
        ("bytes=10-", 416, ""),
        ("bytes=0-1,4-5", 200, "0123456789"),
        ("bytes=-", 200, "0123456789"),
    ],
)
def test_ranges_of_what_lies_elsewhere(range_header: str, status: int, result: str) -> None:
    data = b"0123456789"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = Headers(scope=scope)
        content = RemoteContent(lambda start, stop: data[start:stop], 10, "text/plain")
        answer = range_response(headers, content, {"ETag": '"x"'})
        await answer(scope, receive, send)

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return await client.get("/", headers={"Range": range_header} if range_header else {})

    response = _done(get())
    assert (response.status_code, response.text) == (status, result)
    if status == 206:
        assert response.headers["Content-Range"] == f"bytes {result[0]}-{result[-1]}/10"
