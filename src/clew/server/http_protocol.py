"""The HTTP protocol of the server: uvicorn's, with limits on the parts of a request that come before the routes.

uvicorn limits neither the size of a head nor the time it takes. So a stranger could fill the memory with one endless
header, or hold every connection open by sending nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_COMPLETE = "clew.request_complete"
"""Key in a request's scope: when its last byte was read, by `time.perf_counter`."""
MAX_HEAD_BYTES = 65_536
"""Bytes of the first line and the headers, and of what is sent between or after the parts of a body."""
HEAD_SECONDS = 30.0
"""Seconds in which a head must arrive, and the rest of a body that was refused."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class HttpProtocol(HttpToolsProtocol):
    """One connection. It records when requests are complete: the server's own time counts from there."""

    _parts = 0
    """Heads and parts of bodies so far."""
    _other_bytes = 0
    """Bytes received since the last of them."""
    _incomplete = False
    """Whether a request has begun and not ended."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes, unless there are too many that are no body."""
        before = self._parts
        super().data_received(data)
        self._other_bytes = 0 if self._parts != before else self._other_bytes + len(data)
        if self._other_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Start the time of a head."""
        super().on_message_begin()
        self._incomplete = True
        self._start_deadline()

    def on_headers_complete(self) -> None:
        """End the time of a head."""
        self._parts += 1
        self._stop_deadline()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self._parts += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record the time."""
        self._parts += 1
        self._incomplete = False
        self._stop_deadline()
        self.scope[REQUEST_COMPLETE] = time.perf_counter()  # type: ignore[literal-required]
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the time for the rest of a body that was answered before its end."""
        super().on_response_complete()
        if self._incomplete and not self.transport.is_closing():
            self._start_deadline()

    def _start_deadline(self) -> None:
        self._stop_deadline()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
