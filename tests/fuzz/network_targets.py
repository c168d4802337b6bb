"""What is fuzzed over the network: requests to a server, and messages to a master of an asynchronous training."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from tests.fuzz.targets import Target


class _Server(Target):
    """A server with one run, and a user who is logged in."""

    def open(self, folder: Path) -> None:
        from fastapi.testclient import TestClient

        from clew.server.service import Service

        service = Service.open(_settings(folder))
        self._client = TestClient(_app(service), raise_server_exceptions=False)
        self._client.__enter__()
        self._headers = [
            (b"authorization", f"Bearer {service.first_token('ada')}".encode()),
            (b"content-type", b"application/json"),
        ]
        body = {"uid": "ef" * 16, "name": "first", "recipe": "tracking", "config": {}, "environment": {}}
        assert self.send("POST", "/api/v1/runs", json.dumps(body).encode())[0] == 201, "records need a run"

    def send(self, method: str, address: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request as uvicorn would; return status and answer. A client would refuse the most hostile ones."""
        assert self._client.portal is not None
        path, _, query = quote(address, safe="%/?&=:'").partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
        }
        scope |= {"method": method, "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode()}
        headers = [*self._headers, (b"host", b"127.0.0.1"), (b"content-length", str(len(body)).encode())]
        scope |= {"headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
        status, answer = self._client.portal.call(_answer, self._client.app, scope, body)
        return status, answer

    def check(self, method: str, address: str, body: bytes = b"") -> None:
        """Raise an error of clew for a request that is refused, and another error for one that fails."""
        from clew.errors import ServerError

        status, answer = self.send(method, address, body)
        if status >= 500:
            raise RuntimeError(f"{address.partition('?')[0][:40]}: {status} {answer[:100]!r}")
        if status >= 400:
            raise ServerError("refused", status)


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
        self.check("POST", f"/api/v1{place}", content.encode(errors="surrogateescape"))


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
        self.check("GET", path.read_text())


async def _answer(app: Any, scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
    """Call an ASGI application once; return status and answer."""
    request, status, parts = [{"type": "http.request", "body": body, "more_body": False}], 0, []

    async def receive() -> dict[str, Any]:
        return request.pop() if request else await asyncio.Future()

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    with contextlib.suppress(Exception):  # Starlette raises it again after it has answered with 500
        await app(scope, receive, send)
    return status, b"".join(parts)


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
