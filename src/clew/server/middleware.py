"""What happens around every request: a size limit, security headers, a line in the log, and counters.

A request is authenticated by its headers before its body is read: a body of an unknown sender is never parsed.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clew.server.api.dependencies import authenticate, bearer_token
from clew.server.config import ServiceConfig
from clew.server.http_protocol import REQUEST_COMPLETE
from clew.server.monitoring.prometheus import RequestMetrics
from clew.server.problems import RequestError, problem_response

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
_OPEN_CHANGES = ("/login", "/api/v1/session")
"""Changes that need no token before: they take one."""
_SMALL_BODIES = re.compile(r"/api/v1/(tokens|users|groups|agents)(/.*)?(?<!/log)(?<!/poll)|/api/v1/jobs/\d+/.*|/logout")
"""Paths whose bodies are a few values."""
_SMALL_BYTES = 64_000
_DOCUMENTS = re.compile(r"/api/v1/(runs|studies|benchmarks|views)|/api/v1/studies/\d+/(ask|report|tell)")
"""Paths whose bodies are one document, which lists and pages read again."""
_DOCUMENT_BYTES = 1_000_000
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
            response: Response | None = await _rejection(scope)
            if response is None and _content_length(scope) > limit:
                response = problem_response(413, _too_large(limit), hint="send less at a time")
            if response is not None:
                await response(scope, receive, send_with_headers)
            else:
                await self._app(scope, _limited(receive, limit), send_with_headers)
        finally:
            self._log_request(scope, request_id, status, time.perf_counter() - started)

    def _size_limit(self, scope: Scope) -> int:
        limits, path = self._config.limits, scope["path"]
        if scope["method"] == "PUT" and "/artefacts/" in path:
            return limits.upload_bytes
        if path in _OPEN_CHANGES or _SMALL_BODIES.fullmatch(path):
            return min(_SMALL_BYTES, limits.body_bytes)
        return min(_DOCUMENT_BYTES, limits.body_bytes) if _DOCUMENTS.fullmatch(path) else limits.body_bytes

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


async def _rejection(scope: Scope) -> Response | None:
    """Return the answer to a change of the API whose headers have no valid token; None if it may go on."""
    path = scope["path"]
    if scope["method"] in ("GET", "HEAD", "OPTIONS") or path in _OPEN_CHANGES or not path.startswith("/api/"):
        return None
    request = Request(scope)
    try:
        await authenticate(request, bearer_token(request))
    except RequestError as error:
        return problem_response(error.status, str(error), hint=error.hint, retry_after=error.retry_after)
    except SQLAlchemyError:
        return None  # the route tries again, and reports it
    return None


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
