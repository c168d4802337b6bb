"""A server proves that it knows a token before the token is sent. Here the server is a few bytes of answer."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpcore
import httpx
import pytest

from clew.client.credentials import Credentials, log_in, recorded_address
from clew.client.server_proof import PATH, ServerCheck, address_text, proof, token_digest
from clew.errors import ServerError

TOKEN = "clew_secret"
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()
HERE = "127.0.0.1:8470"
Answer = Callable[[str], bytes]
"""What is answered to a nonce."""


def http(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def proves(digest: str = DIGEST, address: str = HERE, *headers: str) -> Answer:
    def answer(nonce: str) -> bytes:
        facts = {"address": address, "proof": proof(digest, nonce, address)}
        return http(200, json.dumps(facts).encode(), *headers)

    return answer


class Connected:
    """A connection to a server, as httpcore has it: it answers in pieces of 100 bytes, or fails."""

    def __init__(self, answer: Answer, peer: tuple[Any, ...], error: Exception | None = None) -> None:
        self._answer, self._peer, self._error, self._left = answer, peer, error, b""
        self.question, self.closed = "", False

    def write(self, data: bytes, timeout: float | None = None) -> None:
        self.question += data.decode()
        (nonce,) = parse_qs(urlsplit(self.question.split(" ")[1]).query)["nonce"]
        self._left = self._answer(nonce)

    def read(self, size: int, timeout: float | None = None) -> bytes:
        if self._error is not None:
            raise self._error
        piece, self._left = self._left[: min(size, 100)], self._left[min(size, 100) :]
        return piece

    def get_extra_info(self, name: str) -> Any:
        return {"server_addr": self._peer}[name]

    def close(self) -> None:
        self.closed = True


def connect(
    answer: Answer,
    *,
    server: str = f"http://{HERE}",
    peer: tuple[Any, ...] = ("127.0.0.1", 8470),
    to: tuple[str, int] | None = None,
    error: Exception | None = None,
    **options: Any,
) -> tuple[Connected, ServerCheck]:
    """Open a connection for a request. `to` is where it leads, if there is a proxy."""
    check, request = ServerCheck(server, TOKEN, **options), httpx.Request("GET", f"{server}/api/v1/me")
    check(request)
    connected, trace = Connected(answer, peer, error), request.extensions["trace"]
    host, port = to or (urlsplit(server).hostname, urlsplit(server).port or 80)
    trace("connection.connect_tcp.started", {"host": host, "port": port, "timeout": None})
    try:
        trace("connection.connect_tcp.complete", {"return_value": connected})
    except Exception:
        assert connected.closed, "nothing more is sent on a connection whose server was refused"
        raise
    assert not connected.closed
    return connected, check


def test_the_proof_is_an_hmac_of_the_question_with_the_hash_of_the_token() -> None:
    text = f"clew server {'0' * 64} {HERE}".encode()
    assert token_digest(TOKEN) == DIGEST
    assert (
        proof(DIGEST, "0" * 64, HERE) == hmac.new(hashlib.sha256(TOKEN.encode()).digest(), text, "sha256").hexdigest()
    )
    assert token_digest("\ud800") == hashlib.sha256(b"\xed\xa0\x80").hexdigest(), "any text is a token"


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("127.0.0.1", "127.0.0.1:80"),
        ("::ffff:127.0.0.1", "127.0.0.1:80"),
        ("::1", "::1:80"),
        ("0:0::1", "::1:80"),
        ("hep.example", "hep.example:80"),
    ],
)
def test_an_address_has_one_form(host: str, text: str) -> None:
    assert address_text(host, 80) == text


def test_a_server_that_knows_the_token_is_asked_and_accepted() -> None:
    connected, check = connect(proves())
    line, *headers = connected.question.split("\r\n")
    path, _, query = line.split(" ")[1].partition("?")
    asked = parse_qs(query)
    assert path == PATH == "/api/v1/identity" and asked["token"] == [DIGEST[:16]]
    assert len(asked["nonce"][0]) == 64 and "Host: 127.0.0.1:8470" in headers
    assert TOKEN not in connected.question and DIGEST not in connected.question
    assert check.forwarded_from is None
    assert connect(proves())[0].question != connected.question, "every question is another one"


@pytest.mark.parametrize(
    "answer",
    [
        proves(token_digest("clew_guess")),
        lambda nonce: proves()("0" * 64),  # of another question
        lambda nonce: http(200, json.dumps({"address": "1.2.3.4:5", "proof": proof(DIGEST, nonce, HERE)}).encode()),
        lambda nonce: http(200, b'{"address": "127.0.0.1:8470"}'),
        lambda nonce: http(200, b"[]"),
        lambda nonce: http(200, b"5"),
        lambda nonce: http(200, b"\xff\xfe"),
        lambda nonce: http(404, b'{"error": "no such page"}'),
        lambda nonce: http(302, b"", "Location: http://elsewhere/"),
        lambda nonce: http(200, b" " * 70_000),
        lambda nonce: b"SSH-2.0-OpenSSH_9.2\r\n",
        lambda nonce: b"",
        lambda nonce: proves()(nonce)[:-1],
    ],
)
def test_any_other_answer_is_of_an_impostor(answer: Answer) -> None:
    with pytest.raises(ServerError, match="this server does not know your token, so the token was not sent"):
        connect(answer)


def test_an_answer_may_be_long() -> None:
    def answer(nonce: str) -> bytes:
        facts = {"address": HERE, "proof": proof(DIGEST, nonce, HERE), "more": " " * 60_000}
        return http(200, json.dumps(facts).encode())

    assert connect(answer)[1].forwarded_from is None


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(status: int) -> None:
    with pytest.raises(httpx.ConnectError, match=f"HTTP status {status}"):
        connect(lambda nonce: http(status, b""))


def test_a_server_that_refuses_the_token_is_believed() -> None:
    with pytest.raises(ServerError, match="unknown, expired or revoked; log in with `clew login`") as refused:
        connect(lambda nonce: http(401, b""))
    assert refused.value.status == 401


@pytest.mark.parametrize("error", [httpcore.ReadError("reset"), httpcore.ReadTimeout("slow")])
def test_a_connection_that_breaks_is_tried_again(error: Exception) -> None:
    with pytest.raises(httpx.ConnectError, match=str(error)):
        connect(proves(), error=error)


def test_a_proxy_that_closes_connections_is_named() -> None:
    with pytest.raises(ServerError, match="closes every connection after one answer; allow keep-alive"):
        connect(proves(DIGEST, HERE, "Connection: close"))


def test_nothing_is_asked_over_https_or_of_a_proxy() -> None:
    request = httpx.Request("GET", "https://hep.example/api/v1/me")
    ServerCheck("https://hep.example", TOKEN)(request)
    assert "trace" not in request.extensions
    for to in (("proxy", 8470), ("127.0.0.1", 3128)):
        assert connect(proves(), to=to)[0].question == ""


def test_the_port_of_a_server_is_80_if_it_has_none() -> None:
    connected, _ = connect(proves(address="10.0.0.1:80"), server="http://hep.example", peer=("10.0.0.1", 80))
    assert "Host: hep.example:80" in connected.question


def test_a_server_with_an_address_of_version_6() -> None:
    connected, _ = connect(proves(address="::1:9"), server="http://[::1]:9", peer=("::1", 9, 0, 0))
    assert "Host: [::1]:9" in connected.question


@pytest.fixture
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CONFIG", str(tmp_path / "config"))


@pytest.mark.usefixtures("_settings")
def test_a_question_is_not_passed_on_by_another_process_of_this_machine() -> None:
    other = proves(address="127.0.0.1:1")
    with pytest.raises(ServerError, match=r"listens at 127\.0\.0\.1:1, so another process answers here"):
        connect(other)
    log_in(Credentials(f"http://{HERE}", TOKEN, "127.0.0.1:2"))
    with pytest.raises(ServerError, match="another process answers here"):
        connect(other)
    log_in(Credentials(f"http://{HERE}", TOKEN, "127.0.0.1:1"))
    assert connect(other)[1].forwarded_from == "127.0.0.1:1"


@pytest.mark.usefixtures("_settings")
def test_a_login_accepts_a_forwarded_port() -> None:
    assert connect(proves(address="10.1.1.1:80"), any_address=True)[1].forwarded_from == "10.1.1.1:80"


@pytest.mark.usefixtures("_settings")
def test_a_server_elsewhere_may_state_another_address() -> None:
    """Behind a router it has one of its own."""
    assert connect(proves(address="192.168.0.2:1"), peer=("10.0.0.1", 8470))[1].forwarded_from is None


@pytest.mark.usefixtures("_settings")
def test_the_address_of_a_login_is_that_of_its_server() -> None:
    assert recorded_address("http://here:1") is None
    log_in(Credentials("http://here:1", TOKEN, "127.0.0.1:1"))
    assert recorded_address("http://here:1") == "127.0.0.1:1" and recorded_address("http://there:1") is None
