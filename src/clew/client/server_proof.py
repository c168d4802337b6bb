"""A server proves that a token belongs to it, before the token is sent.

The port of a server that has ended is free: any user of that machine can listen there and collect the tokens of agents
and runs. So every new connection starts with a question. Both sides know the SHA-256 of the token, and nobody else
does: the client sends its first digits and a random number, the server answers with an HMAC of that number. The answer
contains the address at which the server listens, so another process cannot pass the question on to the true server.

Over HTTPS the certificate proves the server, and nothing is asked.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import h11
import httpcore
import httpx

from clew.client.credentials import recorded_address
from clew.errors import ServerError

PATH = "/api/v1/identity"
NAME_DIGITS = 16
"""Digits of a token's SHA-256 that name the token in the question; 48 others stay secret."""
UNKNOWN_TOKEN = "this token is not good here: unknown, expired or revoked"
LOGIN_HINT = "log in with `clew login`, or ask an administrator for a token"
_SECONDS = 30.0
_MAX_BYTES = 65_536
_BUSY = (429, 503)


def token_digest(token: str) -> str:
    """Return the SHA-256 of a token. Tokens are random, so a slower hash is not needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def proof(digest: str, nonce: str, address: str) -> str:
    """Return what only those can compute who know the SHA-256 of a token.

    Args:
        digest: The SHA-256 of the token.
        nonce: The random number of the question.
        address: Where the server listens, as `address_text` writes it.
    """
    return hmac.new(bytes.fromhex(digest), f"clew server {nonce} {address}".encode(), "sha256").hexdigest()


def address_text(host: str, port: int | None) -> str:
    """Return an address in one form: `127.0.0.1:8470`, also for `::ffff:127.0.0.1`."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return f"{host}:{port}"
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return f"{mapped or ip}:{port}"


class ServerCheck:
    """Asks every server that a client connects to. Use it as a hook of requests: `event_hooks={"request": [check]}`."""

    def __init__(self, server: str, token: str, *, any_address: bool = False) -> None:
        """Prepare the check; nothing is sent yet.

        Args:
            server: Address of the server.
            token: The token.
            any_address: Accept a server on this machine that listens at another address than the one connected to,
                as behind a forwarded port. Otherwise only the address that `clew login` saved is accepted.
        """
        self._server, self._digest, self._any_address = server, token_digest(token), any_address
        parts = urlsplit(server)
        self._authority = (parts.hostname or "", parts.port or 80)
        self.forwarded_from: str | None = None
        """Where the server listens, if that is another address than the one connected to."""

    def __call__(self, request: httpx.Request) -> None:
        """Have the check run when this request opens a connection."""
        if request.url.scheme == "http":
            request.extensions["trace"] = _Trace(self._authority, self._check)

    def _check(self, stream: Any) -> None:
        nonce = secrets.token_hex(32)
        try:
            answer = self._ask(stream, nonce)
            address = str(answer["address"])
            if not hmac.compare_digest(str(answer["proof"]).encode(), proof(self._digest, nonce, address).encode()):
                raise self._impostor()
        except (h11.RemoteProtocolError, ValueError, KeyError, TypeError):
            raise self._impostor() from None
        self._check_address(address, stream.get_extra_info("server_addr"))

    def _ask(self, stream: Any, nonce: str) -> Mapping[str, Any]:
        target = f"{PATH}?token={self._digest[:NAME_DIGITS]}&nonce={nonce}"
        status, body = self._exchange(stream, target)
        if status == 200:
            return dict(json.loads(body))
        if status in _BUSY:
            raise httpx.ConnectError(f"HTTP status {status}")
        if status == 401:
            raise ServerError(f"{self._server}: {UNKNOWN_TOKEN}; {LOGIN_HINT}", 401)
        raise self._impostor()

    def _exchange(self, stream: Any, target: str) -> tuple[int, bytes]:
        """Send a request on a new connection; return status and body of the answer."""
        http, status, body = h11.Connection(h11.CLIENT), 0, b""
        host = f"[{self._authority[0]}]" if ":" in self._authority[0] else self._authority[0]
        request = h11.Request(method="GET", target=target, headers=[("Host", f"{host}:{self._authority[1]}")])
        try:
            stream.write((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""), timeout=_SECONDS)
            while not isinstance(event := http.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    http.receive_data(stream.read(_MAX_BYTES, timeout=_SECONDS))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    body += event.data
                if len(body) > _MAX_BYTES or isinstance(event, h11.ConnectionClosed):
                    raise self._impostor()
        except (httpcore.NetworkError, httpcore.TimeoutException) as error:
            raise httpx.ConnectError(str(error)) from error
        if status == 200 and http.their_state is not h11.DONE:
            raise ServerError(
                f"{self._server}: a proxy closes every connection after one answer; allow keep-alive there"
            )
        return status, body

    def _check_address(self, stated: str, peer: tuple[Any, ...]) -> None:
        """Check that a server on this machine was asked itself: another process could have passed the question on."""
        if stated == address_text(peer[0], peer[1]) or not ipaddress.ip_address(peer[0]).is_loopback:
            return
        self.forwarded_from = stated
        if not self._any_address and recorded_address(self._server) != stated:
            raise ServerError(
                f"{self._server}: the server for your token listens at {stated}, so another process answers here; "
                "if this is a forwarded port of yours, log in once with `clew login`"
            )

    def _impostor(self) -> ServerError:
        return ServerError(
            f"{self._server}: this server does not know your token, so the token was not sent; does another program "
            "use this port, or is it an older clew?"
        )


class _Trace:
    """What one request does: httpcore calls it with every event."""

    def __init__(self, authority: tuple[str, int], check: Callable[[Any], None]) -> None:
        self._authority, self._check = authority, check
        self._direct = False

    def __call__(self, event: str, details: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.started":
            self._direct = (details["host"], details["port"]) == self._authority  # not a proxy
        elif event == "connection.connect_tcp.complete" and self._direct:
            stream = details["return_value"]
            try:
                self._check(stream)
            except BaseException:
                stream.close()
                raise
