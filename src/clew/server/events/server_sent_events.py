"""Server-sent events: responses that stay open and send events as they happen."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from clew.server.accounts.caller import Caller
from clew.server.problems import RequestError
from clew.server.service import Service

EVENT_STREAM_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Events, as they happen."}
}


def format_event(name: str, data: Any, *, event_id: int | str | None = None) -> str:
    """Return one event as text.

    Args:
        name: The type of the event.
        data: Its content, sent as JSON.
        event_id: What a browser sends back as `Last-Event-ID` when it reconnects.
    """
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


def event_stream(service: Service, caller: Caller, events: AsyncGenerator[str]) -> StreamingResponse:
    """Send events until there are no more, or until the caller loses its rights: the token ended or a group was left.

    Raises:
        RequestError: too many streams are open, of the caller (429) or in all (503).
    """
    limits, opened = service.config.limits, service.open_streams
    for status, count, limit in (
        (429, opened[caller.user], limits.streams_per_user),
        (503, opened.total(), limits.streams),
    ):
        if count >= limit:
            error = "too many event streams are open" + (" by this user" if status == 429 else "")
            raise RequestError(status, error, hint="close some, or try again later", retry_after=10)
    content = _while_authorised(service, caller, events)
    return StreamingResponse(content, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _while_authorised(service: Service, caller: Caller, events: AsyncGenerator[str]) -> AsyncIterator[str]:
    checked_version = -1
    service.open_streams[caller.user] += 1
    try:
        async with aclosing(events):
            async for event in events:
                if caller.expires is not None and caller.expires <= time.time():
                    return
                if checked_version != service.tokens.version:
                    checked_version = service.tokens.version
                    if not await run_in_threadpool(service.tokens.is_unchanged, caller):
                        return
                yield event
    finally:
        opened = service.open_streams
        opened[caller.user] -= 1
        opened += Counter()  # removes users without streams
