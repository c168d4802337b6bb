"""Jobs: submit, look, cancel, try again, and what they print."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from clew.client.job import ENDS, Job, JobDetail, JobEvent, Kind, State, Submission
from clew.server.accounts.callers import Caller
from clew.server.api.dependencies import LARGEST, PROBLEMS, After, Limit, Number, Page, Reader, ServiceOf, Submitter
from clew.server.database.writer import Change
from clew.server.events.notifications import heard
from clew.server.events.server_sent_events import EVENTS, event, streaming
from clew.server.jobs import actions
from clew.server.jobs.job_logs import Logs
from clew.server.service import Service

router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=PROBLEMS)
_BEAT = 15.0
"""Seconds after which a silent stream says that it is there."""


class LogPiece(BaseModel):
    """A part of what an attempt printed; places are bytes."""

    attempt: int
    begin: int
    next: int
    size: int
    text: str
    ended: bool
    """Whether nothing will follow once `next` is `size`."""


@router.post("/jobs", status_code=201)
async def submit(service: ServiceOf, caller: Submitter, body: Submission) -> JobDetail:
    """Put a job into the queue. Sent again with the same `uid` it is the same job."""
    job = await service.write_soon(lambda change: actions.submit(change, caller, body))
    return await run_in_threadpool(_one, service, caller, job)


@router.get("/jobs")
def list_jobs(
    service: ServiceOf,
    caller: Reader,
    state: Annotated[list[State] | None, Query(description="Only in these states.")] = None,
    kind: Kind | None = None,
    owner: Annotated[str | None, Query(max_length=100)] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[Job]:
    """Jobs that I may see, the newest first."""
    with service.database.read() as connection:
        found = actions.listed(
            connection, caller, state=state or (), kind=kind, owner=owner, limit=limit + 1, before=after
        )
    return Page(items=found[:limit], next=found[limit - 1].id if len(found) > limit else None)


@router.get("/jobs/{job}")
def get_job(service: ServiceOf, caller: Reader, job: Number) -> JobDetail:
    """Everything about one."""
    return _one(service, caller, job)


@router.post("/jobs/{job}/cancel")
async def cancel(service: ServiceOf, caller: Submitter, job: Number) -> JobDetail:
    """Have it end: at once where it waits, soon where it runs."""
    return await _changed(service, caller, job, actions.cancel)


@router.post("/jobs/{job}/requeue")
async def requeue(service: ServiceOf, caller: Submitter, job: Number) -> JobDetail:
    """Put one that ended early back into the queue; it goes on where it stopped."""
    return await _changed(service, caller, job, actions.requeue)


async def _changed(service: Service, caller: Caller, job: int, act: Callable[[Change, Caller, int], None]) -> JobDetail:
    def work(change: Change) -> None:
        act(change, caller, job)
        change.after.append(service.people.forget)

    await service.write_soon(work)
    return await run_in_threadpool(_one, service, caller, job)


@router.post("/jobs/{job}/retry", status_code=201)
async def retry(service: ServiceOf, caller: Submitter, job: Number) -> JobDetail:
    """A new job like this one, from the start."""
    new = await service.write_soon(lambda change: actions.retry(change, caller, job))
    return await run_in_threadpool(_one, service, caller, new)


@router.get("/jobs/{job}/history")
def history(service: ServiceOf, caller: Reader, job: Number, limit: Limit = 100, after: After = None) -> Page[JobEvent]:
    """What happened to it, the oldest first."""
    with service.database.read() as connection:
        actions.find(connection, caller, job)
        found = [JobEvent(**row) for row in actions.events(connection, job, limit=limit + 1, after=after or 0)]
    return Page(items=found[:limit], next=found[limit - 1].id if len(found) > limit else None)


@router.get("/jobs/{job}/log")
def log(
    service: ServiceOf,
    caller: Reader,
    job: Number,
    attempt: Annotated[int | None, Query(ge=1, le=LARGEST, description="Default: the newest.")] = None,
    begin: Annotated[int, Query(ge=0, le=LARGEST, alias="from")] = 0,
    limit: Annotated[int, Query(ge=100, le=1_000_000)] = 100_000,
) -> LogPiece:
    """What it printed, from a place on."""
    return _piece(service, _one(service, caller, job), attempt, begin, limit)


@router.get("/jobs/{job}/events", response_class=StreamingResponse, responses=EVENTS)
async def events(
    service: ServiceOf,
    caller: Reader,
    job: Number,
    attempt: Annotated[int | None, Query(ge=1, le=LARGEST, description="The one that `from` speaks of.")] = None,
    begin: Annotated[int, Query(ge=0, le=LARGEST, alias="from", description="Where in its log to begin.")] = 0,
) -> StreamingResponse:
    """As it happens: `state` (the job), `log` (a part of the log), and `end` when nothing will follow."""
    await run_in_threadpool(_one, service, caller, job)
    return streaming(service, caller, _stream(service, caller, job, attempt, begin))


async def _stream(service: Service, caller: Caller, job: int, attempt: int | None, begin: int) -> AsyncGenerator[str]:
    before: JobDetail | None = None
    with service.hub.listening(actions.topic(job)) as ear:
        while not service.hub.stopping:
            now = await run_in_threadpool(_one, service, caller, job)
            if attempt not in (None, now.attempt):
                begin = 0
            attempt = now.attempt
            if before is None or (now.state, now.attempt) != (before.state, before.attempt):
                yield event("state", now.model_dump(mode="json", include=set(Job.model_fields)))
                before = now
            piece = await run_in_threadpool(_piece, service, now, attempt, begin, 100_000)
            if piece.text:
                begin = piece.next
                yield event("log", piece.model_dump())
                continue
            if now.state in ENDS:
                yield event("end", {"state": now.state, "code": now.code})
                return
            if not await heard(ear, _BEAT):
                yield ": still there\n\n"


def _one(service: Service, caller: Caller, job: int) -> JobDetail:
    with service.database.read() as connection:
        return actions.one(connection, caller, job)


def _piece(service: Service, job: Job, attempt: int | None, begin: int, limit: int) -> LogPiece:
    number = attempt or job.attempt
    piece = Logs(service.config.folder).read(job.id, number, begin, limit)
    ended = job.state in ENDS or number < job.attempt
    return LogPiece(attempt=number, begin=piece.begin, next=piece.next, size=piece.size, text=piece.text, ended=ended)
