"""Access control: every route without a token, with a bad one, with that of another user; paths outside the folder."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.conftest import Live

OPEN = {("GET", "/healthz"), ("GET", "/api/v1/identity"), ("POST", "/api/v1/session")}
"""Routes that need no token: one returns no data, one proves that the server knows a token, one takes a token."""
TURNED_AWAY = (401, 429)


def _routes(live: Live) -> Iterator[tuple[str, str]]:
    document = httpx.get(f"{live.url}/api/v1/openapi.json").json()
    for path, methods in document["paths"].items():
        for method in methods:
            if (method.upper(), path) not in OPEN:
                yield method.upper(), re.sub(r"\{[^}]*\}", "1", path)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(tmp_path_factory.mktemp("closed") / "service").start()
    with live.client() as client:
        client.post("/api/v1/runs", json={"uid": "one", "name": "one"})
        client.put("/api/v1/runs/1/artefacts/1", content=b"secret content")
        client.post("/api/v1/datasets", json={"key": "k", "name": "n", "location": "/there"})
        client.post("/api/v1/benchmarks", json={"name": "n", "document": {}})
        space = {"x": {"uniform": [0, 1]}}
        client.post("/api/v1/studies", json={"name": "n", "tune": {"space": space}, "external": True})
        script = {"kind": "script", "name": "n", "files": {"a.py": "1"}, "arguments": ["a.py"]}
        client.post("/api/v1/jobs", json=script)
        client.post("/api/v1/agents", json={"name": "n", "uid": "0123456789abcdef", "slots": {"cpus": 1}})
        for kind in ("runs", "studies", "jobs", "agents", "datasets", "benchmarks"):
            assert client.get(f"/api/v1/{kind}").json()["items"][0]["id"] == 1, kind
    yield live
    live.stop()


def test_every_route_wants_a_token(closed: Live) -> None:
    result = list(_routes(closed))
    assert len(result) > 40
    with httpx.Client(base_url=closed.url, timeout=30) as nobody:
        for method, path in result:
            assert nobody.request(method, path).status_code in TURNED_AWAY, (method, path)


BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "runs/1/records"): {"streams": {}},
    ("PATCH", "runs/1"): {"name": "taken over"},
    ("PUT", "runs/1/tags"): {"tags": ["taken-over"]},
    ("PUT", "studies/1/trials"): {"trials": []},
    ("POST", "studies/1/ask"): {},
    ("POST", "studies/1/report"): {"trial": 0, "step": 1, "value": 1.0},
    ("POST", "studies/1/tell"): {"trial": 0, "values": [1.0]},
}
"""Valid bodies: with a wrong one the answer would be 422, and would say nothing about access."""


def _as_eve(closed: Live, scope: str) -> httpx.Client:
    with closed.client() as admin:
        admin.post("/api/v1/users", json={"name": "eve"})
        body = {"name": "x", "scopes": [scope], "user": "eve"}
        return closed.client(admin.post("/api/v1/tokens", json=body).json()["token"])


def test_a_token_to_read_changes_nothing(closed: Live) -> None:
    with _as_eve(closed, "read") as eve:
        for method, path in _routes(closed):
            if method != "GET" and not path.endswith("/session"):
                assert eve.request(method, path).status_code == 403, (method, path)


def test_another_user_finds_nothing(closed: Live) -> None:
    with _as_eve(closed, "submit") as eve:
        for method, path in _routes(closed):
            if "/events" in path or path.endswith("/session"):
                continue
            response = eve.request(method, path, json=BODIES.get((method, path.removeprefix("/api/v1/"))))
            if re.match(r"/api/v1/(runs|datasets|benchmarks|agents|jobs|studies)/1", path):
                allowed = (403,) if path.startswith("/api/v1/agents/1/") else (404,)
                assert response.status_code in allowed, (method, path, response.text)
            assert b"secret content" not in response.content


def test_a_token_to_read_changes_nothing_of_its_own_user(person: Any) -> None:
    ada, reader = person("ada"), person("ada", scopes=("read",))
    run = ada.post("/api/v1/runs", json={"uid": "own", "name": "own", "tags": ["mine"]}).json()["id"]
    assert ada.put(f"/api/v1/runs/{run}/artefacts/a", content=b"content").status_code == 201
    _cannot_change(reader, run)
    assert reader.get(f"/api/v1/runs/{run}").json()["tags"] == ["mine"]
    assert reader.get(f"/api/v1/runs/{run}/artefacts/a").content == b"content"


def test_the_token_of_a_job_adds_to_its_run_and_changes_nothing_else(shared_server: Live, person: Any) -> None:
    ada = person("ada", scopes=("read", "write", "submit", "agent"))
    script = {"kind": "script", "name": "job", "files": {"a.py": "1"}, "arguments": ["a.py"]}
    job = ada.post("/api/v1/jobs", json=script).json()["id"]
    agent = {"name": "own", "uid": "0123456789abcdef", "slots": {"cpus": 8, "memory": 1 << 33}}
    number = ada.post("/api/v1/agents", json=agent).json()["id"]
    orders = ada.post(f"/api/v1/agents/{number}/poll", json={"wait": 0}).json()["orders"]
    with shared_server.client(next(order["token"] for order in orders if order["job"] == job)) as of_job:
        run = of_job.post("/api/v1/runs", json={"uid": "of-job", "name": "of-job"}).json()["id"]
        assert of_job.put(f"/api/v1/runs/{run}/artefacts/a", content=b"content").status_code == 201
        _cannot_change(of_job, run)
        assert of_job.get(f"/api/v1/runs/{run}/artefacts/a").content == b"content"
    assert ada.get(f"/api/v1/runs/{run}").json()["tags"] == []


def _cannot_change(user: httpx.Client, run: int) -> None:
    assert user.put(f"/api/v1/runs/{run}/tags", json={"tags": ["other"]}).status_code == 403
    assert user.delete(f"/api/v1/runs/{run}/artefacts/a").status_code == 403
    assert user.delete(f"/api/v1/runs/{run}").status_code == 403


def _mutated(token: str) -> list[str]:
    stored = hashlib.sha256(token.encode()).hexdigest()
    swapped = token[:-1] + ("A" if token[-1] != "A" else "B")
    variants = [token[:-1], token + "A", token.upper(), token.lower(), token[5:], swapped, token[::-1], stored]
    variants += [f"clew_{stored}", "clew_", "clew_' OR 1=1 --", "*", "null", "undefined", "0", "[]", "%", "clew_%"]
    return [*variants, base64.b64encode(token.encode()).decode(), f"{token} {token}", f"{token}\x00", "a" * 7000]


@pytest.mark.parametrize("place", ["bearer", "cookie", "basic", "query", "path"])
def test_no_token_but_the_true_one_opens(closed: Live, place: str) -> None:
    with httpx.Client(base_url=closed.url, timeout=30) as nobody:
        for text in _mutated(closed.token):
            safe = quote(text, safe="")
            request: dict[str, dict[str, Any]] = {
                "bearer": {"headers": {"Authorization": b"Bearer " + text.encode()}},
                "cookie": {"headers": {"Cookie": f"clew_session={safe}"}},
                "basic": {"headers": {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}},
                "query": {"params": {"token": text, "access_token": text}},
                "path": {},
            }
            path = f"/api/v1/runs/{safe}" if place == "path" else "/api/v1/runs"
            try:
                response = nobody.get(path, **request[place])
            except (httpx.LocalProtocolError, httpx.RemoteProtocolError):
                continue  # no longer HTTP
            assert response.status_code in (400, 401, 404, 429, 431), (text, response.status_code, response.text)


@given(st.text(max_size=80))
@settings(max_examples=60)
def test_no_text_at_all_opens(closed: Live, text: str) -> None:
    raw = text.encode("utf-8", "replace")
    with httpx.Client(base_url=closed.url) as nobody:
        for headers in ({b"Authorization": b"Bearer " + raw}, {b"Cookie": b"clew_session=" + raw}):
            try:
                response = nobody.get("/api/v1/me", headers=headers)
            except (httpx.LocalProtocolError, httpx.RemoteProtocolError):
                continue
            assert response.status_code in (400, 401, 429)


OUT = ["../../../../etc/passwd", "..", "....//etc/passwd", "/etc/passwd", "..\\..\\clew.sqlite", "a/../../clew.sqlite"]
OUT += [".%2e/%2e%2e/clew.sqlite", "%2e%2e%2fclew.sqlite", "..%252f..%252fclew.sqlite", "%00", "a%00.html", "a//b"]
OUT += ["~/.ssh/id_rsa", "incoming", "file:///etc/passwd", "..;/clew.sqlite", "．．/clew.sqlite", "con", "a\nb"]


@pytest.mark.parametrize("name", OUT)
@pytest.mark.parametrize("before", ["/api/v1/runs/1/artefacts/", "/static/", "/"])
def test_no_path_leads_out(closed: Live, name: str, before: str) -> None:
    headers = {"Authorization": f"Bearer {closed.token}"}
    for written in (quote(name, safe=""), quote(name, safe="%/\\~;:")):
        for method, body in (("GET", None), ("PUT", b"x")):
            connection = HTTPConnection(closed.url.removeprefix("http://"), timeout=30)  # sends paths as they are
            connection.request(method, before + written, body, headers)
            response = connection.getresponse()
            content = response.read()
            connection.close()
            assert b"root:" not in content and b"SQLite format" not in content
            allowed = (200, 201, 303, 400, 404, 405, 422) if name in ("incoming", "con") else (303, 400, 404, 405, 422)
            assert response.status in allowed, (method, written, content[:200])
    stored = {path.name for path in closed.folder.iterdir()}
    assert {name for name in stored if "sqlite" not in name} <= {"artefacts", "agent", "logs"}, stored


def test_bad_tokens_are_counted_and_good_ones_still_pass(server: Live) -> None:
    codes = [
        httpx.get(f"{server.url}/api/v1/me", headers={"Authorization": "Bearer clew_x"}).status_code for _ in range(30)
    ]
    assert codes[:20] == [401] * 20 and codes[-1] == 429
    with server.client() as client:
        assert client.get("/api/v1/me").status_code == 200
        assert "clew_bad_tokens_total 30" in client.get("/metrics").text


def test_large_bodies_are_refused_whether_announced_or_not(closed: Live) -> None:
    large = b'{"uid": "a", "name": "' + b"a" * 9_000_000 + b'"}'
    with closed.client() as client:
        assert client.post("/api/v1/runs", content=large).status_code == 413
        parts = (large[begin : begin + 100_000] for begin in range(0, len(large), 100_000))
        assert client.post("/api/v1/runs", content=parts).status_code == 413
        deep = b'{"uid": "a", "name": "a", "config": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        assert client.post("/api/v1/runs", content=deep).status_code == 422
        assert client.get("/api/v1/me").status_code == 200


def test_every_answer_makes_browsers_careful(closed: Live) -> None:
    for path in ("/healthz", "/api/v1/runs", "/nowhere", "/api/v1/openapi.json"):
        headers = httpx.get(closed.url + path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert "default-src" in headers["Content-Security-Policy"]
        assert "server" not in headers
