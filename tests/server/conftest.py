"""A real server: a separate process on a free port of this machine, with a folder and an administrator."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew import Client


@dataclass
class Live:
    """A server that can be stopped, killed and started again on the same port."""

    folder: Path
    options: tuple[str, ...] = ("--no-agent",)
    program: tuple[str, ...] = ("-c", "from clew.cli.main import run; run()")
    token: str = ""
    """The token of the administrator."""
    url: str = ""
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def start(self) -> Live:
        """Start it and wait until it answers."""
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, *self.program, "serve", "--folder", str(self.folder), "--port", port, *self.options]
        log = (self.folder.parent / f"{self.folder.name}.log").open("a")
        with log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=_environment())
        assert self.process.stdout is not None
        message = ""
        while "clew serves" not in message:
            line = self.process.stdout.readline()
            if not line:
                self.stop()
                raise AssertionError(f"the server did not start:\n{self.log[-3000:]}")
            message += line
        self.url = re.findall(r"http://\S+", message)[0]
        self.token = (re.findall(r"clew_\S+", message) or [self.token])[0]
        self.wait()
        return self

    def wait(self) -> None:
        """Wait until it answers."""
        for _ in range(600):
            try:
                httpx.get(f"{self.url}/healthz", timeout=5).raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError(f"the server does not answer:\n{self.log[-3000:]}")

    def stop(self, sign: int = signal.SIGTERM) -> int:
        """Stop it and return its exit code."""
        assert self.process is not None
        self.process.send_signal(sign)
        code = self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    @property
    def log(self) -> str:
        """The stderr of all its starts."""
        return (self.folder.parent / f"{self.folder.name}.log").read_text()

    def client(self, token: str | None = None) -> httpx.Client:
        """A client with the administrator's token, or another."""
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server for the whole session. Tests do not change objects of other tests."""
    live = Live(tmp_path_factory.mktemp("service") / "service").start()
    yield live
    live.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Live]:
    """A server for one test, which may kill it."""
    live = Live(tmp_path / "service").start()
    yield live
    if live.process is not None and live.process.poll() is None:
        live.stop()


@pytest.fixture
def client(shared_server: Live) -> Iterator[httpx.Client]:
    """The administrator of the shared server."""
    with shared_server.client() as result:
        yield result


@pytest.fixture
def person(shared_server: Live, client: httpx.Client, request: pytest.FixtureRequest) -> Any:
    """Makes users of the shared server: `person("ada", scopes=["read"])` is a client with that user's token."""
    opened: list[httpx.Client] = []

    def make_user(name: str, *, scopes: tuple[str, ...] = ("read", "write", "submit"), group: str = "") -> httpx.Client:
        test = re.sub(r"[^\w.-]", "-", request.node.name[:30])
        name = f"{name}-{test}-{zlib.crc32(request.node.nodeid.encode()):08x}"  # long names of tests begin alike
        response = client.post("/api/v1/users", json={"name": name})
        assert response.status_code in (201, 409), response.text
        if group:
            client.post("/api/v1/groups", json={"name": group})
            assert client.put(f"/api/v1/groups/{group}/members/{name}").status_code == 204
        body = {"name": "test", "scopes": list(scopes), "user": name}
        response = client.post("/api/v1/tokens", json=body)
        assert response.status_code == 201, response.text
        opened.append(shared_server.client(response.json()["token"]))
        return opened[-1]

    yield make_user
    for each in opened:
        each.close()


@pytest.fixture
def client_for(person: Any) -> Iterator[Callable[..., Client]]:
    """Clients of users of the shared server: `client_for("ada", group="trackers")`."""
    opened: list[Client] = []

    def make_client(name: str, **options: Any) -> Client:
        user: httpx.Client = person(name, scopes=("read", "write", "submit", "agent"), **options)
        token = user.headers["Authorization"].removeprefix("Bearer ")
        opened.append(Client(str(user.base_url), token))
        return opened[-1]

    yield make_client
    for each in opened:
        each.close()
