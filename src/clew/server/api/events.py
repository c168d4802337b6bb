"""Event streams (server-sent events) of one run, and of everything that the caller may see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import PROBLEMS, Number, Reader, RunReader, ServiceOf
from clew.server.api.runs import run_rows, visible_runs
from clew.server.database.tables import points, runs, streams, summary
from clew.server.events.notifications import wait_for_notification
from clew.server.events.server_sent_events import EVENT_STREAM_RESPONSE, event_stream, format_event
from clew.server.service import Service

router = APIRouter(prefix="/api/v1", tags=["events"])
_RESPONSES = {**PROBLEMS, **EVENT_STREAM_RESPONSE}
_MIN_INTERVAL = 0.5
"""Minimal seconds between two events of a stream; what happens meanwhile is sent together."""
_KEEP_ALIVE_SECONDS = 15.0
"""Seconds after which a comment is sent on a silent stream."""
_MAX_POINTS = 20_000
"""Points in one event."""


@router.get("/runs/{number}/events", response_class=StreamingResponse, responses=_RESPONSES)
async def run_events(
    service: ServiceOf,
    caller: RunReader,
    number: Number,
    last: Annotated[str | None, Header(alias="Last-Event-ID", max_length=5000)] = None,
) -> StreamingResponse:
    """Stream `run` (its row, when it changed) and `points` (`{metric: [[step, time, value], ...]}`).

    The stream begins now or, with `Last-Event-ID`, where an earlier stream broke off.
    """
    await run_in_threadpool(service.check_run, number, caller)
    positions = _parse_positions(last) if last else await run_in_threadpool(_current_positions, service, number)
    state: dict[str, Any] = {"positions": positions, "row": None}
    return _stream(service, caller, (f"run:{number}",), lambda: _run_events(service, caller, number, state))


@router.get("/events", response_class=StreamingResponse, responses=_RESPONSES)
async def all_events(service: ServiceOf, caller: Reader) -> StreamingResponse:
    """Stream `runs` (rows of runs that changed since the last event) and `jobs` (jobs, agents or studies changed)."""
    state = {"since": time.time()}
    return _stream(service, caller, ("runs", "jobs", "queue", "studies"), lambda: _all_events(service, caller, state))


def _stream(
    service: Service, caller: Caller, topics: tuple[str, ...], new_events: Callable[[], list[str]]
) -> StreamingResponse:
    async def content() -> AsyncGenerator[str]:
        with service.notifications.subscribe(*topics) as wakeup:
            yield "retry: 2000\n\n"
            while not service.notifications.stopping:
                started = time.monotonic()
                for event in await run_in_threadpool(new_events):
                    yield event
                notified = await wait_for_notification(wakeup, _KEEP_ALIVE_SECONDS)
                if not notified:
                    yield ": keep alive\n\n"
                pause = _MIN_INTERVAL - (time.monotonic() - started)
                if notified and pause > 0:
                    await asyncio.sleep(pause)

    return event_stream(service, caller, content())


def _current_positions(service: Service, number: int) -> dict[str, int]:
    with service.database.read() as connection:
        rows = connection.execute(sa.select(streams.c.name, streams.c.next).where(streams.c.run == number))
        return {name: following - 1 for name, following in rows}


def _parse_positions(text: str) -> dict[str, int]:
    """Parse `rank-0:120,usage-0:33`: the newest record of each stream that was sent."""
    positions = {}
    for part in text.split(","):
        name, _, seq = part.partition(":")
        if seq.isascii() and seq.isdigit() and len(seq) < 17:
            positions[name] = int(seq)
    return positions


def _run_events(service: Service, caller: Caller, number: int, state: dict[str, Any]) -> list[str]:
    events = []
    with service.database.read() as connection:
        row = connection.execute(visible_runs(caller).where(runs.c.id == number)).mappings().one_or_none()
        if row is None:
            return [format_event("gone", {"id": number})] if state["row"] is not None else []
        current = run_rows(connection, [dict(row)])[0].model_dump()
        new_points = _new_points(connection, number, state["positions"])
    if current != state["row"]:
        state["row"] = current
        events.append(format_event("run", current))
    if new_points:
        positions = ",".join(f"{name}:{seq}" for name, seq in sorted(state["positions"].items()))
        events.append(format_event("points", new_points, event_id=positions))
    return events


def _new_points(connection: sa.Connection, number: int, positions: dict[str, int]) -> dict[str, list[Any]]:
    """Return points since `positions`, and update these."""
    new_points: dict[str, list[Any]] = {}
    for key, name, following in connection.execute(
        sa.select(streams.c.id, streams.c.name, streams.c.next).where(streams.c.run == number)
    ).all():
        before = positions.get(name, -1)
        if following - 1 <= before:
            continue
        query = sa.select(summary.c.name, points.c.step, points.c.time, points.c.value)
        query = query.join(points, points.c.metric == summary.c.id)
        query = query.where(summary.c.stream == key, points.c.seq > before, points.c.seq < following)
        for metric, *point in connection.execute(query.order_by(points.c.seq).limit(_MAX_POINTS)):
            new_points.setdefault(metric, []).append(point)
        positions[name] = following - 1
    return new_points


def _all_events(service: Service, caller: Caller, state: dict[str, float]) -> list[str]:
    since, state["since"] = state["since"], time.time()
    query = visible_runs(caller).where(runs.c.updated >= since - 1).order_by(runs.c.updated.desc()).limit(200)
    with service.database.read() as connection:
        rows = run_rows(connection, [dict(row) for row in connection.execute(query).mappings()])
    return [format_event("runs", [row.model_dump() for row in rows]), format_event("jobs", {})]
