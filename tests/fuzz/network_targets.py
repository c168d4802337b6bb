"""What is fuzzed over the network: requests to a server, and messages to a master of an asynchronous training."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.targets import Target


class _Server(Target):
    """A server with one run, and a user who is logged in."""

    def open(self, folder: Path) -> None:
        from fastapi.testclient import TestClient

        from clew.server.service import Service

        service = Service.open(_settings(folder))
        self._client = TestClient(_app(service), raise_server_exceptions=False, follow_redirects=False)
        self._client.__enter__()
        self._client.headers["Authorization"] = f"Bearer {service.first_token('ada')}"
        body = {"uid": "ef" * 16, "name": "first", "recipe": "tracking", "config": {}, "environment": {}}
        assert self._client.post("/api/v1/runs", json=body).status_code == 201, "records need a run"

    def check(self, place: str, answer: Any) -> None:
        """Raise an error of clew for a request that was refused, and another error for one that failed."""
        from clew.errors import ServerError

        if answer.status_code >= 500:
            raise RuntimeError(f"{place}: {answer.status_code} {answer.text[:200]}")
        if answer.status_code >= 400:
            raise ServerError("refused", answer.status_code)


class Http(_Server):
    """The bodies of requests of a user of a server."""

    name, is_json = "http", True
    _places = ("/runs", "/jobs", "/studies", "/agents", "/tokens", "/runs/1/records")

    def write_examples(self, folder: Path) -> None:
        first = {"uid": "ab" * 16, "name": "first", "recipe": "tracking", "config": {"train": {}}, "environment": {}}
        bodies: tuple[dict[str, Any], ...] = (
            {**first, "dataset": None, "group": None, "tags": ["a"]},
            {"kind": "script", "name": "job", "files": {"a.py": "print(1)"}, "arguments": ["a.py"], "resources": {}},
            {"name": "study", "space": {"x": {"low": 0.0, "high": 1.0}}, "objectives": [{"metric": "loss"}]},
            {"name": "own", "uid": "0123456789abcdef", "slots": {"cpus": 8, "memory": 1 << 33}, "group": None},
            {"name": "token", "scopes": ["read"]},
            {"streams": {"rank-0": [{"seq": 0, "time": 1.0, "kind": "step", "step": 1, "loss": 0.5}]}},
        )
        for number, body in enumerate(bodies):
            (folder / str(number)).write_text(json.dumps(body))

    def input(self, seed: int, number: int, examples: list[bytes]) -> bytes:
        place = random.Random(f"place {seed} {number}").randrange(len(examples))
        return self._places[place].encode() + b"\n" + super().input(seed, number, [examples[place]])

    def read(self, path: Path) -> None:
        place, _, content = path.read_text(errors="surrogateescape").partition("\n")
        body, kind = content.encode(errors="surrogateescape"), {"Content-Type": "application/json"}
        self.check(place, self._client.post(f"/api/v1{place}", content=body, headers=kind))


class HttpGet(_Server):
    """Addresses: every route of the server that answers GET, with hostile words and values in it.

    Streams of events, which do not end, are left out.
    """

    name = "http-get"
    _values = (
        "1",
        "0",
        "-1",
        "9" * 30,
        "1e9",
        "a",
        "%00",
        "%2e%2e%2f",
        "..",
        "a" * 5000,
        "ü",
        "'--",
        "%ff",
        "*",
        "[",
        "<b>",
    )

    def write_examples(self, folder: Path) -> None:
        from clew.server.service import Service

        lines = []
        for route in _routes(_app(Service.open(_settings(folder.parent)))):
            if "GET" in (route.methods or ()) and not route.path.endswith("/events"):
                names = [each.alias for each in route.dependant.query_params] if hasattr(route, "dependant") else []
                lines.append(" ".join((route.path, *names)))
        assert len(lines) > 40
        (folder / "a").write_text("\n".join(lines))

    def input(self, seed: int, number: int, examples: list[bytes]) -> bytes:
        chance = random.Random(f"{self.name} {seed} {number}")
        path, *names = chance.choice(examples[0].decode().split("\n")).split()
        place = re.sub(r"\{[^}]*\}", lambda _: chance.choice(self._values), path)
        chosen = [name for name in (*names, "unknown") if chance.random() < 0.6]
        words = [
            f"{name}={chance.choice(self._values)}" for name in chosen for _ in range(chance.choice((1, 1, 1, 50)))
        ]
        return f"{place}?{'&'.join(words)}".encode()

    def read(self, path: Path) -> None:
        place = path.read_text()
        self.check(place, self._client.get(place))


def _settings(folder: Path) -> Any:
    from clew.server.config import ServiceConfig

    return ServiceConfig(folder=folder / "service")


def _app(service: Any) -> Any:
    from clew.server.app import create_app

    return create_app(service)


def _routes(app: Any) -> Iterator[Any]:
    for route in app.routes:
        if getattr(route, "methods", None):
            yield route
        elif hasattr(route, "routes"):
            yield from _routes(route)


class Socket(Target):
    """Frames on the sockets of a master: from a peer with the keys, and as plain bytes from one without them.

    After each input, the master must still hear a worker.
    """

    name = "socket"

    def write_examples(self, folder: Path) -> None:
        header = ["push", {"number": 3, "step": 7, "lease": "a"}, ["float32", 4], None]
        (folder / "a").write_bytes(json.dumps(header).encode() + b"\n" + bytes(16))
        (folder / "b").write_bytes(json.dumps(["hello", {"number": None}, None, None]).encode() + b"\n")
        (folder / "c").write_bytes(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00CURVE" + bytes(47))

    def open(self, folder: Path) -> None:
        import zmq

        from clew.training.asynchronous.messaging.frames import message_limit
        from clew.training.asynchronous.messaging.join_token import JoinToken
        from clew.training.asynchronous.messaging.tcp import TcpClient, TcpServer

        token = JoinToken.new()
        self._server, self._worker = TcpServer(token=token, max_bytes=message_limit(1000)), TcpClient()
        self._worker.connect(0, self._server.address, token)
        self._context = zmq.Context()
        self._peer = self._context.socket(zmq.DEALER)
        token.secure_client(self._peer)
        self._peer.connect(f"tcp://{self._server.address}")

    def read(self, path: Path) -> None:
        from clew.errors import DataError

        data = path.read_bytes()
        host, _, port = self._server.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as plain, contextlib.suppress(OSError):
            plain.sendall(data)
        before = len(self._server.refusals)
        self._server.refusals.clear()
        self._peer.send_multipart(data[:10_000].split(b"\n"))
        self._worker.send(0, "hello", {"mark": path.name})
        while (message := self._server.receive(30)) is not None and message.fields.get("mark") != path.name:
            pass
        if message is None:
            raise RuntimeError(f"the master no longer hears its worker ({before} refused before)")
        while self._peer.poll(0):
            self._peer.recv_multipart()
        if self._server.refusals:
            raise DataError("not a message")


NETWORK_TARGETS: dict[str, Target] = {kind.name: kind() for kind in (Http, HttpGet, Socket)}
