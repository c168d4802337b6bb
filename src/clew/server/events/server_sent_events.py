"""Server-sent events: an answer that goes on."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from clew.server.accounts.callers import Caller
from clew.server.problems import RefusedError
from clew.server.service import Service

EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Events, as they happen."}
}


def event(name: str, data: Any, *, number: int | str | None = None) -> str:
    """One event; `number` is what a browser sends back as Last-Event-ID when it comes again."""
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


def streaming(service: Service, caller: Caller, events: AsyncGenerator[str]) -> StreamingResponse:
    """Send events until there are no more, or the caller is not who it was: the token ended, or a group was left.

    Raises:
        RefusedError: too many streams are open.
    """
    if service.hub.listeners >= service.config.limits.streams:
        raise RefusedError(503, "too many event streams are open", do="close some, or try again later", wait=10)
    told = _while_good(service, caller, events)
    return StreamingResponse(told, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _while_good(service: Service, caller: Caller, events: AsyncGenerator[str]) -> AsyncIterator[str]:
    known = -1
    async with aclosing(events):
        async for each in events:
            if caller.expires is not None and caller.expires <= time.time():
                return
            if known != service.people.changes:
                known = service.people.changes
                if not await run_in_threadpool(service.people.still, caller):
                    return
            yield each
