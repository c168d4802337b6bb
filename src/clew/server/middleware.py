"""What happens around every request: a size limit, security headers, a line in the log, and counters."""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clew.server.config import ServiceConfig
from clew.server.monitoring.prometheus import RequestMetrics
from clew.server.problems import problem_response

_LOG = logging.getLogger("clew.server.requests")
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
"""Headers of every response, unless the route sets its own."""
REQUEST_COMPLETE = "clew.request_complete"
"""Key in a request's scope: when its last byte was read, by `time.perf_counter`."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class RequestMiddleware:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, *, config: ServiceConfig, request_metrics: RequestMetrics) -> None:
        self._app = app
        self._config = config
        self._request_metrics = request_metrics
        self._headers = dict(SECURITY_HEADERS)
        if config.secure:
            self._headers["Strict-Transport-Security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, request_id = time.perf_counter(), secrets.token_hex(8)
        status = 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                seconds = time.perf_counter() - scope.get(REQUEST_COMPLETE, started)
                self._add_headers(MutableHeaders(scope=message), request_id, seconds)
            await send(message)

        try:
            limit = self._size_limit(scope)
            if _content_length(scope) > limit:
                response = problem_response(413, _too_large(limit), hint="send less at a time")
                await response(scope, receive, send_with_headers)
            else:
                await self._app(scope, _limited(receive, limit), send_with_headers)
        finally:
            self._log_request(scope, request_id, status, time.perf_counter() - started)

    def _size_limit(self, scope: Scope) -> int:
        limits = self._config.limits
        return limits.upload_bytes if scope["method"] == "PUT" and "/artefacts/" in scope["path"] else limits.body_bytes

    def _add_headers(self, headers: MutableHeaders, request_id: str, seconds: float) -> None:
        for header, value in self._headers.items():
            headers.setdefault(header, value)
        headers["X-Request-Id"] = request_id
        headers["Server-Timing"] = f"app;dur={1000 * seconds:.2f}"

    def _log_request(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        self._request_metrics.count_request(method, route, status, seconds)
        level = logging.INFO if status < 500 else logging.ERROR
        if _LOG.isEnabledFor(level):
            extra: dict[str, Any] = {"request": request_id, "method": scope["method"], "path": scope["path"]}
            extra |= {"status": status, "ms": round(1000 * seconds, 2), "address": (scope.get("client") or ("",))[0]}
            caller = scope.get("state", {}).get("caller")
            extra |= {"user": caller.name} if caller is not None else {}
            _LOG.log(level, "%s %s %s", scope["method"], scope["path"], status, extra=extra)


def _content_length(scope: Scope) -> int:
    length = dict(scope["headers"]).get(b"content-length", b"0")
    return int(length) if length.isdigit() else 0


def _too_large(limit: int) -> str:
    return f"the body is larger than {limit:,} bytes"


def _limited(receive: Receive, limit: int) -> Receive:
    """Limit the size of bodies whose length the header does not have."""
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(413, _too_large(limit))  # the only exception that FastAPI passes on here
        return message

    return receive_limited
