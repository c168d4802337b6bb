"""What a user, or a place of alerts that misbehaves, can do with the alerts of a server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import Live
from tests.server.test_records import make, send, start


class _Hook(BaseHTTPRequestHandler):
    """A webhook: `/inside` is an address that only the server can reach."""

    posts: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    inside: list[str] = []
    behaviour = "well"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.behaviour == "rubbish":
            self.refused.append(body)
            self.wfile.write(b"rubbish\r\n\r\n")
            return
        self.posts.append(body)
        self.send_response(302 if self.behaviour == "redirect" else 204)
        self.send_header("Location", "/inside")
        self.end_headers()

    def do_GET(self) -> None:
        self.inside.append(self.path)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def hook() -> Iterator[type[_Hook]]:
    kind = type("Hook", (_Hook,), {"posts": [], "refused": [], "inside": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kind.port = server.server_address[1]  # type: ignore[attr-defined]
    yield kind
    server.shutdown()
    server.server_close()


@pytest.fixture
def live(hook: Any, tmp_path: Path) -> Iterator[Live]:
    email = {"host": "127.0.0.1", "port": 1, "sender": "clew@here.org", "to": ["ada@here.org"]}  # nothing answers there
    alerts = {"webhook": f"http://127.0.0.1:{hook.port}/hook", "email": email, "seconds": 0.5}
    (tmp_path / "server.yaml").write_text(json.dumps({"alerts": alerts}))
    started = Live(tmp_path / "service", options=("--no-agent", "--config", str(tmp_path / "server.yaml"))).start()
    yield started
    started.stop()


def _fail(client: httpx.Client, name: str) -> None:
    end = {"seq": 1, "time": time.time() + 1, "kind": "end", "status": "failed", "message": "no beam"}
    send(client, make(client, name), start(), end)


def _wait(condition: Callable[[], bool]) -> None:
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def test_a_webhook_that_answers_rubbish_does_not_end_the_alerts(hook: Any, live: Live) -> None:
    hook.behaviour = "rubbish"
    with live.client() as client:
        _fail(client, "first")
        _wait(lambda: bool(hook.refused))
        hook.behaviour = "well"
        _wait(lambda: [each["name"] for each in hook.posts] == ["first"])
        _wait(lambda: live.log.count("email: an alert was not delivered") > 3)
    assert len(hook.posts) == 1, "a mail server that does not answer does not repeat the webhook"


def test_a_webhook_cannot_send_the_server_to_another_address(hook: Any, live: Live) -> None:
    hook.behaviour = "redirect"
    with live.client() as client:
        _fail(client, "first")
        _wait(lambda: len(hook.posts) > 1)  # refused, and tried again
    assert not hook.inside


def test_one_user_cannot_use_up_the_alerts_of_others(hook: Any, live: Live) -> None:
    with live.client() as client:
        client.post("/api/v1/users", json={"name": "mallory"})
        body = {"name": "test", "scopes": ["read", "write"], "user": "mallory"}
        with live.client(client.post("/api/v1/tokens", json=body).json()["token"]) as mallory:
            for number in range(120):
                _fail(mallory, f"bad-{number}")
        _wait(lambda: len(hook.posts) >= 20)
        _fail(client, "of-another")
        _wait(lambda: "of-another" in [each["name"] for each in hook.posts])
    assert len(hook.posts) == 21, "a user causes at most 20 alerts per hour"
