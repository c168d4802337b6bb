"""Requests to a server: a token, patience with a server that is away, and problems as errors of clew's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from clew.core.files import atomic_path
from clew.errors import ConfigError, ServerError

_API = "/api/v1"
_BUSY = (429, 503)
_LOCAL = ("127.0.0.1", "localhost", "::1")


class Link:
    """A connection to a server. Safe for several threads."""

    def __init__(self, server: str, token: str, *, patience: float = 30.0) -> None:
        """`patience`: seconds to try again for while the server is away or too busy.

        Raises:
            ConfigError: that is no address.
        """
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"server '{server}': expected an address, as http://127.0.0.1:8470")
        self.server, self.patience = server.rstrip("/"), patience
        self._http = httpx.Client(
            base_url=self.server,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(60, connect=5),
            trust_env=parts.hostname not in _LOCAL,  # a proxy cannot reach this machine
        )

    def close(self) -> None:
        """Give its connections back."""
        self._http.close()

    def __enter__(self) -> Link:
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
        again: bool = True,
        timeout: float | None = None,
    ) -> Any:
        """What the server answers, as plain data. `again`: asking twice does no harm, should an answer get lost.

        Raises:
            ServerError: it cannot be reached, or says no.
        """
        asked = {name: value for name, value in (params or {}).items() if value is not None}
        end, pause = time.monotonic() + self.patience, 0.1
        while True:
            try:
                answer = self._http.request(
                    method,
                    f"{_API}{path}",
                    json=body,
                    content=content,
                    params=asked,
                    timeout=httpx.USE_CLIENT_DEFAULT if timeout is None else httpx.Timeout(timeout, connect=5),
                )
            except httpx.TransportError as error:
                unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if not (again or unsent) or time.monotonic() + pause > end:
                    raise ServerError(self._away(error)) from error
            else:
                if answer.status_code not in _BUSY or time.monotonic() + pause > end:
                    return _checked(answer)
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def upload(self, path: str, file: Path, *, params: Mapping[str, Any]) -> Any:
        """Send a file's content.

        Raises:
            ServerError: the server is away, or says no.
        """
        try:
            with file.open("rb") as stream:
                wait = httpx.Timeout(600, connect=5)
                return _checked(self._http.put(f"{_API}{path}", content=stream, params=dict(params), timeout=wait))
        except httpx.TransportError as error:
            raise ServerError(self._away(error)) from error

    def download(self, path: str, to: Path, *, params: Mapping[str, Any]) -> None:
        """Write an answer to a file, whole or not at all.

        Raises:
            ServerError: the server is away, or says no.
        """
        try:
            with self._http.stream("GET", f"{_API}{path}", params=dict(params)) as answer, atomic_path(to) as temporary:
                if answer.is_error:
                    answer.read()
                    _checked(answer)
                with temporary.open("wb") as file:
                    for block in answer.iter_bytes():
                        file.write(block)
        except httpx.TransportError as error:
            raise ServerError(self._away(error)) from error

    def pages(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Everything in a list, page by page."""
        after = None
        while True:
            page = self.call("GET", path, params={**(params or {}), "after": after})
            yield from page["items"]
            after = page["next"]
            if after is None:
                return

    def events(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[tuple[str, Any]]:
        """Events of a stream, until it ends. One that breaks is not taken up again here."""
        asked = {name: value for name, value in (params or {}).items() if value is not None}
        try:
            with self._http.stream(
                "GET", f"{_API}{path}", params=asked, timeout=httpx.Timeout(60, connect=5)
            ) as answer:
                if answer.is_error:
                    answer.read()
                    _checked(answer)
                yield from _events(answer.iter_lines())
        except httpx.TransportError as error:
            raise ServerError(self._away(error)) from error

    def _away(self, error: httpx.TransportError) -> str:
        told = str(error) or type(error).__name__
        return f"{self.server}: the server does not answer ({told}); is `clew serve` running, and the address right?"


def _checked(answer: httpx.Response) -> Any:
    if not answer.is_error:
        return answer.json() if answer.content else None
    try:
        told = answer.json()
        words = [told["error"], *(f"at {each}" for each in (told.get("where"),) if each)]
        message = "; ".join([" ".join(words), *(each for each in (told.get("do"),) if each)])
    except (ValueError, KeyError, TypeError):
        message = f"{answer.request.url}: HTTP status {answer.status_code}"
    raise ServerError(message, answer.status_code)


def _events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)
