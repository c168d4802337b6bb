"""A process that listens on the port of a server, and wants tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from clew.client.connection import Connection
from clew.client.credentials import Credentials, credentials, log_in
from clew.client.server_proof import PATH, proof, token_digest
from clew.errors import ServerError
from tests.server.conftest import Live

CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]
Answer = Callable[[str, str], tuple[int, bytes]]
"""What an impostor answers to a path on its own address."""


class Impostor:
    """Answers every request as it likes and remembers all heads."""

    def __init__(self, answer: Answer, port: int = 0) -> None:
        impostor, self.heads = self, list[str]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                impostor.heads.append(f"{self.requestline}\n{self.headers}")
                status, content = answer(self.path, impostor.address)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET  # noqa: N815 - a name of the library

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.address}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def impostor() -> Iterator[Callable[..., Impostor]]:
    started: list[Impostor] = []

    def start(answer: Answer, port: int = 0) -> Impostor:
        started.append(Impostor(answer, port))
        return started[-1]

    yield start
    for each in started:
        each.close()


def _knows_nothing(path: str, address: str) -> tuple[int, bytes]:
    return 200, b'{"name": "ada", "orders": [], "items": [], "next": null}'


def _guesses(path: str, address: str) -> tuple[int, bytes]:
    return 200, json.dumps({"address": address, "proof": proof(token_digest("clew_guess"), "0" * 64, address)}).encode()


def _is_older(path: str, address: str) -> tuple[int, bytes]:
    return 404, b'{"error": "no such page"}'


def _sends_no_text(path: str, address: str) -> tuple[int, bytes]:
    return 200, b"\xff\xfe[[[["


@pytest.mark.parametrize("answer", [_knows_nothing, _guesses, _is_older, _sends_no_text])
def test_a_server_that_does_not_know_the_token_does_not_get_it(
    answer: Answer, impostor: Callable[..., Impostor]
) -> None:
    other = impostor(answer)
    with (
        Connection(other.url, "clew_secret", retry_seconds=0.0) as link,
        pytest.raises(ServerError, match="does not know your token, so the token was not sent"),
    ):
        link.call("GET", "/me")
    assert len(other.heads) == 1 and PATH in other.heads[0], other.heads
    assert "clew_secret" not in other.heads[0] and token_digest("clew_secret") not in other.heads[0]


def test_the_port_of_a_server_that_died_gets_no_token(server: Live, impostor: Callable[..., Impostor]) -> None:
    with Connection(server.url, server.token, retry_seconds=5.0) as link:
        assert link.call("GET", "/me")["admin"]
        server.stop()
        other = impostor(_knows_nothing, int(server.url.rpartition(":")[2]))
        with pytest.raises(ServerError, match="token was not sent"):
            link.call("GET", "/me")
    assert other.heads and not [head for head in other.heads if server.token in head]


def test_an_agent_takes_no_orders_from_the_port_of_a_dead_server(
    server: Live, impostor: Callable[..., Impostor], tmp_path: Path
) -> None:
    server.stop()
    other = impostor(_knows_nothing, int(server.url.rpartition(":")[2]))
    environment = {**os.environ, "CLEW_SERVER": server.url, "CLEW_TOKEN": server.token}
    command = [*CLEW, "agent", "--folder", str(tmp_path / "agent")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert "token was not sent" in agent.stdout.readline()
        agent.terminate()
        agent.communicate(timeout=60)
    assert other.heads and not [head for head in other.heads if server.token in head]


def test_a_question_cannot_be_passed_on_to_the_true_server(
    shared_server: Live, impostor: Callable[..., Impostor]
) -> None:
    def pass_on(path: str, address: str) -> tuple[int, bytes]:
        answer = httpx.get(shared_server.url + path)
        return answer.status_code, answer.content

    other = impostor(pass_on)
    with (
        Connection(other.url, shared_server.token, retry_seconds=0.0) as link,
        pytest.raises(ServerError, match=r"listens at .*, so another process answers here"),
    ):
        link.call("GET", "/me")
    assert len(other.heads) == 1 and shared_server.token not in other.heads[0]


def test_a_forwarded_port_is_used_after_a_login(
    shared_server: Live, impostor: Callable[..., Impostor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CONFIG", str(tmp_path / "config"))

    def forward(path: str, address: str) -> tuple[int, bytes]:
        headers = {} if path.startswith(PATH) else {"Authorization": f"Bearer {shared_server.token}"}
        answer = httpx.get(shared_server.url + path, headers=headers)
        return answer.status_code, answer.content

    tunnel = impostor(forward)
    command = [*CLEW, "login", tunnel.url]
    ended = subprocess.run(command, input=shared_server.token, capture_output=True, text=True, timeout=60)
    address = shared_server.url.removeprefix("http://")
    assert ended.returncode == 0 and address in ended.stdout, ended
    assert credentials() == Credentials(tunnel.url, shared_server.token, address)
    with Connection(tunnel.url, shared_server.token) as link:
        assert link.call("GET", "/me")["admin"]
    log_in(Credentials(tunnel.url, shared_server.token, "127.0.0.1:1"))
    with Connection(tunnel.url, shared_server.token) as link, pytest.raises(ServerError, match="another process"):
        link.call("GET", "/me")


def test_the_proof_needs_a_valid_token(shared_server: Live) -> None:
    def ask(token: str) -> httpx.Response:
        return httpx.get(shared_server.url + PATH, params={"token": token, "nonce": "0" * 64})

    digest = token_digest(shared_server.token)
    address = shared_server.url.removeprefix("http://")
    assert ask(digest[:16]).json() == {"address": address, "proof": proof(digest, "0" * 64, address)}
    assert ask(token_digest("clew_wrong")[:16]).status_code in (401, 429)
    assert [ask(name).status_code for name in (digest[:15], digest, "%" * 16, digest[:15] + "g")] == [422] * 4
