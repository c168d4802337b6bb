"""Routes for jobs: submit, list, cancel, requeue, retry, and their logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from clew.client.job import FINAL_STATES, Job, JobDetail, JobEvent, Kind, State, Submission
from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import (
    MAX_ID,
    PROBLEMS,
    After,
    Limit,
    Number,
    Reader,
    ResultPage,
    ServiceOf,
    Submitter,
)
from clew.server.api.fast_routes import BoundedRoute
from clew.server.database.writer import Transaction
from clew.server.events.notifications import wait_for_notification
from clew.server.events.server_sent_events import EVENT_STREAM_RESPONSE, event_stream, format_event
from clew.server.jobs import actions, job_rows
from clew.server.jobs.job_logs import JobLogs
from clew.server.jobs.job_rows import JobFilter
from clew.server.jobs.topics import job_topic
from clew.server.service import Service
from clew.server.studies.study_jobs import check_submission

router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=PROBLEMS, route_class=BoundedRoute)
_KEEP_ALIVE_SECONDS = 15.0
"""Seconds after which a comment is sent on a silent stream."""
_STREAM_BYTES = 100_000


class JobLogPart(BaseModel):
    """A part of what an attempt printed. Positions are in bytes."""

    attempt: int
    begin: int
    next: int
    size: int
    text: str
    ended: bool
    """Whether the log is complete once `next` equals `size`."""


@router.post("/jobs", status_code=201)
async def submit(service: ServiceOf, caller: Submitter, body: Submission) -> JobDetail:
    """Add a job to the queue. A submission with the same `uid` is the same job."""
    await run_in_threadpool(check_submission, body)
    job = await service.write_async(lambda transaction: actions.submit(transaction, caller, body))
    return await run_in_threadpool(_job_detail, service, caller, job)


def _job_filter(
    state: Annotated[list[State] | None, Query(description="Only jobs in these states.")] = None,
    kind: Kind | None = None,
    owner: Annotated[str | None, Query(max_length=100)] = None,
    study: Annotated[int | None, Query(ge=1, le=MAX_ID, description="Only the trials of this study.")] = None,
    after: After = None,
) -> JobFilter:
    return JobFilter(tuple(state or ()), kind, owner, study, before=after)


@router.get("/jobs")
def list_jobs(
    service: ServiceOf, caller: Reader, selection: Annotated[JobFilter, Depends(_job_filter)], limit: Limit = 100
) -> ResultPage[Job]:
    """List the jobs that the caller may see, the newest first."""
    with service.database.read() as connection:
        jobs = job_rows.list_jobs(connection, caller, selection, limit=limit + 1)
    return ResultPage(items=jobs[:limit], next=jobs[limit - 1].id if len(jobs) > limit else None)


@router.get("/jobs/{job}")
def get_job(service: ServiceOf, caller: Reader, job: Number) -> JobDetail:
    """Return a job with all that it was submitted with."""
    return _job_detail(service, caller, job)


@router.post("/jobs/{job}/cancel")
async def cancel(service: ServiceOf, caller: Submitter, job: Number) -> JobDetail:
    """Cancel a job: at once if it waits, soon if it runs."""
    return await _change_job(service, caller, job, actions.cancel)


@router.post("/jobs/{job}/requeue")
async def requeue(service: ServiceOf, caller: Submitter, job: Number) -> JobDetail:
    """Put a job that ended early back into the queue; it resumes where it stopped."""
    return await _change_job(service, caller, job, actions.requeue)


async def _change_job(
    service: Service, caller: Caller, job: int, action: Callable[[Transaction, Caller, int], None]
) -> JobDetail:
    def work(transaction: Transaction) -> None:
        action(transaction, caller, job)
        transaction.after_commit.append(service.tokens.clear)

    await service.write_async(work)
    return await run_in_threadpool(_job_detail, service, caller, job)


@router.post("/jobs/{job}/retry", status_code=201)
async def retry(service: ServiceOf, caller: Submitter, job: Number) -> JobDetail:
    """Submit a copy of a job, which starts from the beginning."""
    new = await service.write_async(lambda transaction: actions.retry(transaction, caller, job))
    return await run_in_threadpool(_job_detail, service, caller, new)


@router.get("/jobs/{job}/history")
def history(
    service: ServiceOf, caller: Reader, job: Number, limit: Limit = 100, after: After = None
) -> ResultPage[JobEvent]:
    """List the events of a job, the oldest first."""
    with service.database.read() as connection:
        job_rows.visible_job(connection, caller, job)
        rows = job_rows.job_history(connection, job, limit=limit + 1, after=after or 0)
    events = [JobEvent(**row) for row in rows]
    return ResultPage(items=events[:limit], next=events[limit - 1].id if len(events) > limit else None)


@router.get("/jobs/{job}/log")
def log(
    service: ServiceOf,
    caller: Reader,
    job: Number,
    attempt: Annotated[int | None, Query(ge=1, le=MAX_ID, description="Default: the newest.")] = None,
    begin: Annotated[int, Query(ge=0, le=MAX_ID, alias="from")] = 0,
    limit: Annotated[int, Query(ge=100, le=1_000_000)] = 100_000,
) -> JobLogPart:
    """Return what a job printed, from a position on."""
    return _log_part(service, _job_detail(service, caller, job), attempt, begin, limit)


@router.get("/jobs/{job}/events", response_class=StreamingResponse, responses=EVENT_STREAM_RESPONSE)
async def events(
    service: ServiceOf,
    caller: Reader,
    job: Number,
    attempt: Annotated[int | None, Query(ge=1, le=MAX_ID, description="The attempt that `from` refers to.")] = None,
    begin: Annotated[int, Query(ge=0, le=MAX_ID, alias="from", description="Where in its log to begin.")] = 0,
) -> StreamingResponse:
    """Stream events: `state` (the job), `log` (a part of the log), and `end` when nothing will follow."""
    await run_in_threadpool(_job_detail, service, caller, job)
    return event_stream(service, caller, _stream(service, caller, job, attempt, begin))


async def _stream(service: Service, caller: Caller, job: int, attempt: int | None, begin: int) -> AsyncGenerator[str]:
    sent: tuple[str, int] | None = None
    with service.notifications.subscribe(job_topic(job)) as wakeup:
        while not service.notifications.stopping:
            current = await run_in_threadpool(_job_detail, service, caller, job)
            if attempt not in (None, current.attempt):
                begin = 0
            attempt = current.attempt
            if (current.state, current.attempt) != sent:
                yield format_event("state", current.model_dump(mode="json", include=set(Job.model_fields)))
                sent = current.state, current.attempt
            part = await run_in_threadpool(_log_part, service, current, attempt, begin, _STREAM_BYTES)
            if part.text:
                begin = part.next
                yield format_event("log", part.model_dump())
                continue
            if current.state in FINAL_STATES:
                yield format_event("end", {"state": current.state, "exit_code": current.exit_code})
                return
            if not await wait_for_notification(wakeup, _KEEP_ALIVE_SECONDS):
                yield ": keep alive\n\n"


def _job_detail(service: Service, caller: Caller, job: int) -> JobDetail:
    with service.database.read() as connection:
        return job_rows.job_detail(connection, caller, job, quota=service.config.limits.quota_jobs)


def _log_part(service: Service, job: Job, attempt: int | None, begin: int, limit: int) -> JobLogPart:
    number = attempt or job.attempt
    part = JobLogs(service.config.folder).read(job.id, number, begin, limit)
    ended = job.state in FINAL_STATES or number < job.attempt
    return JobLogPart(attempt=number, begin=part.begin, next=part.next, size=part.size, text=part.text, ended=ended)
