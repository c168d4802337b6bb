"""Around every request: a limit to its size, headers that make browsers careful, a line in the log, a count."""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clew.server.config import ServiceConfig
from clew.server.monitoring.prometheus import Meter
from clew.server.problems import answer

_LOG = logging.getLogger("clew.server.requests")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""On every answer, unless the route has set its own."""
WHOLE = "clew.whole"
"""In a request's scope: the moment at which its last byte was read, by `time.perf_counter`."""


class Shell:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, *, config: ServiceConfig, meter: Meter) -> None:
        self._app = app
        self._config = config
        self._meter = meter
        self._headers = dict(HEADERS)
        if config.secure:
            self._headers["Strict-Transport-Security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, name = time.perf_counter(), secrets.token_hex(8)
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._dress(MutableHeaders(scope=message), name, time.perf_counter() - scope.get(WHOLE, begun))
            await send(message)

        try:
            if _length(scope) > self._limit(scope):
                await self._too_large(scope, receive, sending)
            else:
                await self._app(scope, _counted(receive, self._limit(scope)), sending)
        finally:
            self._note(scope, name, status, time.perf_counter() - begun)

    def _limit(self, scope: Scope) -> int:
        limits = self._config.limits
        return limits.upload_bytes if scope["method"] == "PUT" and "/artefacts/" in scope["path"] else limits.body_bytes

    async def _too_large(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit = self._limit(scope)
        await answer(413, f"the body is larger than {limit:,} bytes", do="send less at a time")(scope, receive, send)

    def _dress(self, headers: MutableHeaders, name: str, seconds: float) -> None:
        for header, value in self._headers.items():
            headers.setdefault(header, value)
        headers["X-Request-Id"] = name
        headers["Server-Timing"] = f"app;dur={1000 * seconds:.2f}"

    def _note(self, scope: Scope, name: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        self._meter.saw(scope["method"] if scope["method"] in _METHODS else "OTHER", route, status, seconds)
        level = logging.INFO if status < 500 else logging.ERROR
        if _LOG.isEnabledFor(level):
            facts: dict[str, Any] = {"request": name, "method": scope["method"], "path": scope["path"]}
            facts |= {"status": status, "ms": round(1000 * seconds, 2), "address": (scope.get("client") or ("",))[0]}
            caller = scope.get("state", {}).get("caller")
            facts |= {"user": caller.name} if caller is not None else {}
            _LOG.log(level, "%s %s %s", scope["method"], scope["path"], status, extra=facts)


_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def _length(scope: Scope) -> int:
    told = dict(scope["headers"]).get(b"content-length", b"0")
    return int(told) if told.isdigit() else 0


def _counted(receive: Receive, limit: int) -> Receive:
    """For bodies whose length was not told."""
    taken = 0

    async def receiving() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > limit:
            raise HTTPException(413, f"the body is larger than {limit:,} bytes")  # the only one that FastAPI lets pass
        return message

    return receiving
