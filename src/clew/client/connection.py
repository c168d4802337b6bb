"""HTTP requests to a server: they carry the token, are repeated while the server is away, and raise `ServerError`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from clew.client.server_proof import ServerCheck
from clew.core.files import atomic_path
from clew.errors import ConfigError, ServerError

_API = "/api/v1"
_BUSY = (429, 503)
_NO_SERVER_BEHIND = (502, 504)
"""What a proxy answers while the server behind it is down."""
_LOCAL = ("127.0.0.1", "localhost", "::1")
_CONNECT_SECONDS = 5
_UPLOAD_SECONDS = 600


class Connection:
    """A connection to a server. Several threads may use it at once."""

    def __init__(self, server: str, token: str, *, retry_seconds: float = 30.0, any_address: bool = False) -> None:
        """Prepare the connection; nothing is sent yet.

        The token is sent only to a server that proves that it knows it (`ServerCheck`).

        Args:
            server: Address of the server.
            token: A token of this server.
            retry_seconds: Seconds for which a request is repeated while the server is away or too busy.
            any_address: Accept a server on this machine that listens at another address than this one.

        Raises:
            ConfigError: the address is not valid.
        """
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"server '{server}': expected an address, such as http://127.0.0.1:8470")
        self.server, self.retry_seconds = server.rstrip("/"), retry_seconds
        self.check = ServerCheck(self.server, token, any_address=any_address)
        local = parts.hostname in _LOCAL
        self.http = httpx.Client(
            base_url=self.server,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(60, connect=_CONNECT_SECONDS),
            trust_env=not local,  # a proxy cannot reach this machine
            verify=httpx.create_ssl_context() if local and parts.scheme == "https" else True,  # reads SSL_CERT_FILE
            event_hooks={"request": [self.check]},
        )

    def close(self) -> None:
        """Close the HTTP connections."""
        self.http.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        repeatable: bool = True,
        timeout: float | None = None,
    ) -> Any:
        """Send a request and return the JSON of the answer.

        Args:
            method: `GET`, `POST`, ...
            path: Path below `/api/v1`.
            body: Sent as JSON.
            content: Sent as it is, instead of `body`.
            params: Query parameters; those that are None are left out.
            repeatable: Whether sending the request twice does no harm, in case its answer gets lost.
            timeout: Seconds to wait for the answer; default: 60.

        Raises:
            ServerError: the server does not answer, or refuses the request.
        """
        query = {name: value for name, value in (params or {}).items() if value is not None}
        end, pause = time.monotonic() + self.retry_seconds, 0.1
        wait = httpx.USE_CLIENT_DEFAULT if timeout is None else httpx.Timeout(timeout, connect=_CONNECT_SECONDS)
        while True:
            try:
                answer = self.http.request(
                    method, f"{_API}{path}", json=body, content=content, params=query, timeout=wait
                )
            except httpx.TransportError as error:
                unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if not (repeatable or unsent) or time.monotonic() + pause > end:
                    raise ServerError(self._no_answer(error)) from error
            else:
                again = answer.status_code in _BUSY or (repeatable and answer.status_code in _NO_SERVER_BEHIND)
                if not again or time.monotonic() + pause > end:
                    return _checked(answer)
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def upload(self, path: str, file: Path, *, params: Mapping[str, Any]) -> Any:
        """Send the content of a file.

        Raises:
            ServerError: the server does not answer, or refuses it.
        """
        wait = httpx.Timeout(_UPLOAD_SECONDS, connect=_CONNECT_SECONDS)
        with self._transport_errors(), file.open("rb") as stream:
            return _checked(self.http.put(f"{_API}{path}", content=stream, params=dict(params), timeout=wait))

    def download(self, path: str, to: Path, *, params: Mapping[str, Any]) -> None:
        """Write an answer to a file. The file is complete, or it does not appear at all.

        Raises:
            ServerError: the server does not answer, or refuses the request.
        """
        with (
            self._transport_errors(),
            self.http.stream("GET", f"{_API}{path}", params=dict(params)) as answer,
            atomic_path(to) as temporary,
        ):
            _check_stream(answer)
            with temporary.open("wb") as file:
                for block in answer.iter_bytes():
                    file.write(block)

    def pages(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Yield the items of a list, one page after the other."""
        after = None
        while True:
            page = self.call("GET", path, params={**(params or {}), "after": after})
            yield from page["items"]
            after = page["next"]
            if after is None:
                return

    def events(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[tuple[str, Any]]:
        """Yield the events of a stream until it ends, as pairs of name and data. A broken stream is not resumed here.

        Raises:
            ServerError: the server does not answer, or refuses the request.
        """
        query = {name: value for name, value in (params or {}).items() if value is not None}
        wait = httpx.Timeout(60, connect=_CONNECT_SECONDS)
        with (
            self._transport_errors(),
            self.http.stream("GET", f"{_API}{path}", params=query, timeout=wait) as answer,
        ):
            _check_stream(answer)
            yield from _parse_events(answer.iter_lines())

    @contextmanager
    def _transport_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise ServerError(self._no_answer(error)) from error

    def _no_answer(self, error: httpx.TransportError) -> str:
        reason = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            return (
                f"{self.server}: the certificate of the server is not accepted ({reason}); if an authority of your "
                "site signed it, set SSL_CERT_FILE to the file with the certificate of this authority"
            )
        return f"{self.server}: the server does not answer ({reason}); is `clew serve` running, and the address right?"


def _check_stream(answer: httpx.Response) -> None:
    if answer.is_error:
        answer.read()
        _checked(answer)


def _checked(answer: httpx.Response) -> Any:
    if not answer.is_error:
        return answer.json() if answer.content else None
    try:
        problem = answer.json()
        where = f" ({problem['where']})" if problem.get("where") else ""
        hint = f"; {problem['hint']}" if problem.get("hint") else ""
        message = f"{problem['error']}{where}{hint}"
    except (ValueError, KeyError, TypeError):
        message = f"{answer.request.url}: HTTP status {answer.status_code}"
        if answer.status_code in _NO_SERVER_BEHIND:
            message += "; a proxy answers, and the server behind it does not; is `clew serve` running?"
    raise ServerError(message, answer.status_code)


def _parse_events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)
