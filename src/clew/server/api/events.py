"""Streams of events (SSE): what happens to a run, and to all that one sees, as it happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from clew.server.accounts.callers import Caller
from clew.server.api.dependencies import PROBLEMS, Number, Reader, ServiceOf, Watcher
from clew.server.api.runs import listed, rows
from clew.server.database.tables import points, runs, streams, summary
from clew.server.events.notifications import heard
from clew.server.events.server_sent_events import EVENTS, event, streaming
from clew.server.service import Service

router = APIRouter(prefix="/api/v1", tags=["events"])
_RESPONSES = {**PROBLEMS, **EVENTS}
_PAUSE = 0.5
"""Seconds between two events of a stream, at least: what happens meanwhile comes together."""
_QUIET = 15.0
"""Seconds after which a sign of life is sent."""
_MOST = 20_000
"""Points in one event."""


@router.get("/runs/{number}/events", response_class=StreamingResponse, responses=_RESPONSES)
async def run_events(
    service: ServiceOf,
    caller: Watcher,
    number: Number,
    last: Annotated[str | None, Header(alias="Last-Event-ID", max_length=5000)] = None,
) -> StreamingResponse:
    """`run` (its row, when it changed) and `points` (`{metric: [[step, time, value], ...]}`), from now on or, with
    `Last-Event-ID`, from where a stream broke off.
    """
    await run_in_threadpool(service.look, number, caller)
    seen = _places(last) if last else await run_in_threadpool(_now, service, number)
    state: dict[str, Any] = {"seen": seen, "row": None}
    return _stream(service, caller, (f"run:{number}",), lambda: _run_news(service, caller, number, state))


@router.get("/events", response_class=StreamingResponse, responses=_RESPONSES)
async def all_events(service: ServiceOf, caller: Reader) -> StreamingResponse:
    """`runs`: the rows of runs that changed since the event before; `jobs`: jobs, agents or studies may have."""
    state = {"since": time.time()}
    return _stream(service, caller, ("runs", "jobs", "queue", "studies"), lambda: _all_news(service, caller, state))


def _stream(
    service: Service, caller: Caller, topics: tuple[str, ...], news: Callable[[], list[str]]
) -> StreamingResponse:
    async def told() -> AsyncGenerator[str]:
        with service.hub.listening(*topics) as ear:
            yield "retry: 2000\n\n"
            while not service.hub.stopping:
                begun = time.monotonic()
                for each in await run_in_threadpool(news):
                    yield each
                woken = await heard(ear, _QUIET)
                if not woken:
                    yield ": still here\n\n"
                left = _PAUSE - (time.monotonic() - begun)
                if woken and left > 0:
                    await asyncio.sleep(left)

    return streaming(service, caller, told())


def _now(service: Service, number: int) -> dict[str, int]:
    with service.database.read() as connection:
        found = connection.execute(sa.select(streams.c.name, streams.c.next).where(streams.c.run == number))
        return {name: following - 1 for name, following in found}


def _places(text: str) -> dict[str, int]:
    """`rank-0:120,usage-0:33` as the newest record of each stream that was told."""
    found = {}
    for part in text.split(","):
        name, _, seq = part.partition(":")
        if seq.isascii() and seq.isdigit() and len(seq) < 17:
            found[name] = int(seq)
    return found


def _run_news(service: Service, caller: Caller, number: int, state: dict[str, Any]) -> list[str]:
    told = []
    with service.database.read() as connection:
        row = connection.execute(listed(caller).where(runs.c.id == number)).mappings().one_or_none()
        if row is None:
            return [event("gone", {"id": number})] if state["row"] is not None else []
        fresh = rows(connection, [dict(row)])[0].model_dump()
        found = _fresh_points(connection, number, state["seen"])
    if fresh != state["row"]:
        state["row"] = fresh
        told.append(event("run", fresh))
    if found:
        place = ",".join(f"{name}:{seq}" for name, seq in sorted(state["seen"].items()))
        told.append(event("points", found, number=place))
    return told


def _fresh_points(connection: sa.Connection, number: int, seen: dict[str, int]) -> dict[str, list[Any]]:
    """What came since; `seen` is brought up to date."""
    found: dict[str, list[Any]] = {}
    for key, name, following in connection.execute(
        sa.select(streams.c.id, streams.c.name, streams.c.next).where(streams.c.run == number)
    ).all():
        before = seen.get(name, -1)
        if following - 1 <= before:
            continue
        query = sa.select(summary.c.name, points.c.step, points.c.time, points.c.value)
        query = query.join(points, points.c.metric == summary.c.id)
        query = query.where(summary.c.stream == key, points.c.seq > before, points.c.seq < following)
        for metric, *point in connection.execute(query.order_by(points.c.seq).limit(_MOST)):
            found.setdefault(metric, []).append(point)
        seen[name] = following - 1
    return found


def _all_news(service: Service, caller: Caller, state: dict[str, float]) -> list[str]:
    since, state["since"] = state["since"], time.time()
    query = listed(caller).where(runs.c.updated >= since - 1).order_by(runs.c.updated.desc()).limit(200)
    with service.database.read() as connection:
        found = rows(connection, [dict(row) for row in connection.execute(query).mappings()])
    return [event("runs", [row.model_dump() for row in found]), event("jobs", {})]
