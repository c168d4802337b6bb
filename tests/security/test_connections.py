"""Connections of strangers: endless heads, heads that never come, guesses at cookies; and streams of one user."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew.server import http_protocol
from clew.server.app import create_app
from clew.server.config import ServiceConfig
from clew.server.service import Service
from tests.server.conftest import Live


@contextlib.contextmanager
def _connected(live: Live) -> Iterator[socket.socket]:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        yield connection


def _sent_until_closed(connection: socket.socket, part: bytes, limit: int = 1 << 24) -> int:
    """Send a part again and again; return the bytes that the server took before it closed the connection."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < limit:
            sent += connection.send(part)
    return sent


@pytest.mark.parametrize(
    ("begin", "part"),
    [
        (b"GET /", b"a" * 10_000),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX-Endless: ", b"a" * 10_000),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"X-Many: " + b"a" * 1000 + b"\r\n"),
        (b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: a\r\n" * 1000),
        (b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;x=", b"a" * 10_000),
    ],
    ids=["address", "header", "headers", "trailers", "extension of a chunk"],
)
def test_an_endless_head_does_not_fill_the_memory(begin: bytes, part: bytes, shared_server: Live) -> None:
    with _connected(shared_server) as connection:
        connection.sendall(begin)
        buffered = 8_000_000  # what the system takes although nobody reads it
        assert _sent_until_closed(connection, part) < http_protocol.MAX_HEAD_BYTES + buffered
    assert httpx.get(f"{shared_server.url}/healthz").status_code == 200


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nX-Slow: ",
        b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half a body that was refused"],
)
def test_a_connection_on_which_nothing_comes_is_closed(begin: bytes, tmp_path: Path) -> None:
    code = (
        "import sys; from clew.server import http_protocol; http_protocol.HEAD_SECONDS = 1.0; "
        "from clew.cli.main import run; run()"
    )
    live = Live(tmp_path / "service", program=("-c", code)).start()
    try:
        with _connected(live) as connection:
            connection.sendall(begin)
            received = b""
            while part := connection.recv(10_000):  # ends when the server closes the connection
                received += part
                with contextlib.suppress(OSError):
                    connection.send(b" ")  # one byte more does not start the time again
        assert (b"401" in received) == begin.startswith(b"POST")
    finally:
        live.stop()


def test_guesses_at_the_cookie_of_a_page_are_counted(tmp_path: Path) -> None:
    live = Live(tmp_path / "service").start()
    try:
        with httpx.Client(base_url=live.url) as guesser:
            for number in range(30):
                answer = guesser.get("/runs", headers={"Cookie": f"clew_session=clew_{number}"})
            assert answer.status_code == 429 and "too many bad tokens" in answer.text
            assert guesser.get("/runs").status_code == 303, "without a cookie: to the login page"
        with live.client() as user:
            assert user.get("/api/v1/me").status_code == 200
    finally:
        live.stop()


def test_one_user_cannot_keep_others_from_event_streams(tmp_path: Path) -> None:
    settings = tmp_path / "service.yaml"
    settings.write_text("limits: {streams: 8, streams_per_user: 3}\n")
    live = Live(tmp_path / "service", options=("--no-agent", "--config", str(settings))).start()
    try:
        with live.client() as admin, contextlib.ExitStack() as opened:
            admin.post("/api/v1/users", json={"name": "mallory"})
            body = {"name": "test", "scopes": ["read"], "user": "mallory"}
            mallory = opened.enter_context(live.client(admin.post("/api/v1/tokens", json=body).json()["token"]))
            answers = [opened.enter_context(mallory.stream("GET", "/api/v1/events")) for _ in range(5)]
            assert [each.status_code for each in answers] == [200, 200, 200, 429, 429]
            assert opened.enter_context(admin.stream("GET", "/api/v1/events")).status_code == 200
            opened.pop_all().close()
        with live.client() as admin, admin.stream("GET", "/api/v1/events") as stream:
            assert stream.status_code == 200
    finally:
        live.stop()


def test_every_page_wants_a_login(tmp_path: Path, shared_server: Live) -> None:
    service = Service.open(ServiceConfig(folder=tmp_path / "service"))
    routes: list[Any] = list(create_app(service).routes)
    service.close()
    shown = [route for route in routes if not route.path.startswith(("/api/", "/metrics"))]
    pages = {(method, route.path) for route in shown for method in route.methods}
    pages -= {("GET", "/login"), ("POST", "/login"), ("GET", "/static/{mark}/{name}"), ("GET", "/healthz")}
    assert len(pages) > 15
    with httpx.Client(base_url=shared_server.url, timeout=30) as stranger:
        for method, path in sorted(pages - {("HEAD", path) for _, path in pages}):
            answer = stranger.request(method, re.sub(r"\{[^}]*\}", "1", path), data={} if method == "POST" else None)
            assert answer.status_code == 303 and answer.headers["location"].startswith("/login"), (method, path)


def test_no_form_of_another_site_is_accepted(client: httpx.Client, shared_server: Live) -> None:
    cookie = client.post("/api/v1/session", json={"token": shared_server.token}).headers["set-cookie"].split(";")[0]
    for origin in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Referer": shared_server.url}):
        with httpx.Client(base_url=shared_server.url, headers={"Cookie": cookie, **origin}) as browser:
            for path in ("/submit", "/submit/check", "/demo", "/logout"):
                assert browser.post(path, data={"kind": "train"}).status_code == 403, (origin, path)
            assert browser.post("/api/v1/runs", json={"uid": "csrf", "name": "csrf"}).status_code == 403
