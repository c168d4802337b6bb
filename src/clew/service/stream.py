"""Server-sent events: an answer that goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse

from clew.service.answers import RefusedError
from clew.service.service import Service

EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Events, as they happen."}
}


def event(name: str, data: Any, *, number: int | str | None = None) -> str:
    """One event; `number` is what a browser sends back as Last-Event-ID when it comes again."""
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


def streaming(service: Service, events: AsyncIterator[str]) -> StreamingResponse:
    """Send events until there are no more.

    Raises:
        RefusedError: too many streams are open.
    """
    if service.hub.listeners >= service.config.limits.streams:
        raise RefusedError(503, "too many event streams are open", do="close some, or try again later", wait=10)
    return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
