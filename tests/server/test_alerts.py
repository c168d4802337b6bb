"""Alerts: a real server with a real webhook and a real mail server of this machine."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli import clew
from tests.server.conftest import Live
from tests.server.test_records import make, send, start, step


class _Posts(BaseHTTPRequestHandler):
    received: list[dict[str, Any]] = []

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class _Mail(socketserver.StreamRequestHandler):
    received: list[str] = []

    def handle(self) -> None:
        """Speak enough of SMTP to accept a message."""
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line.strip().upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                text = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.received.append(text.decode())
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
            if word == b"QUIT":
                return


@pytest.fixture
def places() -> Iterator[tuple[int, int]]:
    """The ports of a webhook and a mail server."""
    _Posts.received, _Mail.received = [], []
    servers: list[Any] = [HTTPServer(("127.0.0.1", 0), _Posts), socketserver.TCPServer(("127.0.0.1", 0), _Mail)]
    for each in servers:
        threading.Thread(target=each.serve_forever, daemon=True).start()
    yield servers[0].server_address[1], servers[1].server_address[1]
    for each in servers:
        each.shutdown()
        each.server_close()


def _wait(condition: Callable[[], bool]) -> None:
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("nothing was sent")


def test_failures_and_plateaus_are_told_once(tmp_path: Path, places: tuple[int, int]) -> None:
    hook, mail = places
    email = {"host": "127.0.0.1", "port": mail, "sender": "clew@here.org", "to": ["ada@here.org"]}
    alerts = {"webhook": f"http://127.0.0.1:{hook}/alert", "email": email, "plateau_epochs": 3, "seconds": 0.5}
    settings = tmp_path / "server.yaml"
    settings.write_text(json.dumps({"alerts": {**alerts, "address": "https://clew.here.org"}}))
    live = Live(tmp_path / "service", options=("--no-agent", "--config", str(settings))).start()
    try:
        with live.client() as client:
            failed, flat = make(client, "bad-beam"), make(client, "flat")
            end = {"seq": 2, "time": time.time() + 1, "kind": "end", "status": "failed", "message": "no beam"}
            send(client, failed, start(), step(1, 1), end)
            validations = [
                {"seq": n, "time": 1000.0 + n, "kind": "validation", "step": 10 * n, "epoch": n - 1, **values}
                for n, values in enumerate(({"metrics": {"loss": v}} for v in (0.5, 0.2, 0.3, 0.3, 0.4, 0.3)), start=1)
            ]
            send(client, flat, start(), *validations)
            _wait(lambda: len(_Posts.received) >= 2 and len(_Mail.received) >= 2)
            time.sleep(1.5)  # another two looks
    finally:
        live.stop()
    assert {each["kind"]: each["name"] for each in _Posts.received} == {"failed": "bad-beam", "plateau": "flat"}
    assert len(_Posts.received) == len(_Mail.received) == 2
    text = next(each["text"] for each in _Posts.received if each["kind"] == "failed")
    assert "no beam" in text and f"https://clew.here.org/runs/{failed}" in text
    assert any("To: ada@here.org" in each and "bad-beam" in each for each in _Mail.received)


def test_alerts_are_off_and_bad_settings_are_one_line(tmp_path: Path) -> None:
    from clew.server.config import ServiceConfig

    assert not ServiceConfig(folder=tmp_path).alerts.on
    (tmp_path / "server.yaml").write_text("alerts: {webhook: 'file:///etc/passwd'}\n")
    outcome = clew("serve", "--config", tmp_path / "server.yaml", "--folder", tmp_path / "s")
    assert outcome.code == 2 and "webhook" in outcome.err and len(outcome.err.strip().splitlines()) == 1
