"""Routes for agents: they register, poll for jobs, report results and send logs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool

from clew.client.agent_messages import (
    AgentInfo,
    AgentRegistration,
    LogSize,
    Poll,
    PollAnswer,
    RegisteredAgent,
    ResultReceipt,
)
from clew.client.job import JobResult
from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import MAX_ID, PROBLEMS, AgentCaller, Number, Reader, ResultPage, ServiceOf, Submitter
from clew.server.api.fast_routes import BoundedRoute
from clew.server.database.tables import jobs as job_table
from clew.server.database.writer import Transaction
from clew.server.events.notifications import wait_for_notification
from clew.server.jobs import agents, queue
from clew.server.jobs.job_logs import MAX_LOG_BYTES, MAX_LOG_BYTES_OVER_QUOTA, JobLogs
from clew.server.jobs.topics import JOBS_TOPIC, QUEUE_TOPIC, job_topic
from clew.server.problems import RequestError
from clew.server.service import Service
from clew.server.storage.quota import remaining_bytes

router = APIRouter(prefix="/api/v1", tags=["agents"], responses=PROBLEMS, route_class=BoundedRoute)
_MAX_LOG_PART = 1_000_000


@router.post("/agents", status_code=201)
async def register(service: ServiceOf, caller: AgentCaller, body: AgentRegistration) -> RegisteredAgent:
    """Register an agent with its name and its resources."""
    timeout = service.config.limits.agent_seconds
    work = partial(agents.register_agent, caller=caller, registration=body, timeout=timeout)
    return RegisteredAgent(id=await service.write_async(work), lease=timeout)


@router.get("/agents")
def list_agents(service: ServiceOf, caller: Reader) -> ResultPage[AgentInfo]:
    """List the agents that the caller may see."""
    with service.database.read() as connection:
        return ResultPage(items=agents.list_agents(connection, caller, timeout=service.config.limits.agent_seconds))


@router.delete("/agents/{agent}", status_code=204)
async def delete_agent(service: ServiceOf, caller: Submitter, agent: Number) -> None:
    """Delete an agent that has no jobs."""
    await service.write_async(lambda transaction: agents.delete_agent(transaction, caller, agent))


@router.post("/agents/{agent}/poll")
async def poll(request: Request, service: ServiceOf, caller: AgentCaller, agent: Number, body: Poll) -> PollAnswer:
    """Return what the agent must do, as soon as there is something, or after `wait` seconds."""
    end, first = time.monotonic() + body.wait, True
    with service.notifications.subscribe(QUEUE_TOPIC) as wakeup:
        while True:
            work = partial(agents.answer_poll, service=service, caller=caller, agent=agent, poll=body, first=first)
            answer = await service.write_async(work)
            seconds = end - time.monotonic()
            if not answer.empty or seconds <= 0 or service.notifications.stopping:
                return answer
            first = False
            notified = await wait_for_notification(wakeup, seconds)
            if not notified or await request.is_disconnected():
                return PollAnswer()


@router.post("/agents/{agent}/jobs/{job}")
async def report(service: ServiceOf, caller: AgentCaller, agent: Number, job: Number, body: JobResult) -> ResultReceipt:
    """Record the state of a job. The same report counts once."""

    def work(transaction: Transaction) -> bool:
        agents.owned_agent(transaction.connection, caller, agent)
        queue.record_contact(transaction, agent, now=time.time())
        accepted = queue.record_result(transaction, agent, job, body)
        transaction.notify(JOBS_TOPIC, job_topic(job))
        if body.state != "running":
            transaction.notify(QUEUE_TOPIC)
            transaction.after_commit.append(service.tokens.clear)
        return accepted

    return ResultReceipt(accepted=await service.write_async(work))


@dataclass(frozen=True)
class LogPosition:
    """Where in which log output belongs."""

    job: int
    attempt: int
    offset: int


def _log_position(
    job: Number,
    attempt: Annotated[int, Query(ge=1, le=MAX_ID)],
    offset: Annotated[int, Query(ge=0, le=MAX_ID)],
) -> LogPosition:
    return LogPosition(job, attempt, offset)


@router.post(
    "/agents/{agent}/jobs/{job}/log",
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}},
)
async def append_log(
    request: Request,
    service: ServiceOf,
    caller: AgentCaller,
    agent: Number,
    position: Annotated[LogPosition, Depends(_log_position)],
) -> LogSize:
    """Append output of a job to its log, at an offset in bytes. The answer is the offset to continue from."""
    data = await request.body()
    if len(data) > _MAX_LOG_PART:
        raise RequestError(413, f"more than {_MAX_LOG_PART:,} bytes at a time", hint="send less at a time")
    size = await run_in_threadpool(_append, service, caller, agent, position, data)
    service.notifications.notify([job_topic(position.job)])
    return LogSize(size=size)


def _append(service: Service, caller: Caller, agent: int, position: LogPosition, data: bytes) -> int:
    job, attempt = position.job, position.attempt
    with service.database.read() as connection:
        agents.owned_agent(connection, caller, agent)
        columns = (job_table.c.agent, job_table.c.attempt, job_table.c.owner)
        row = connection.execute(sa.select(*columns).where(job_table.c.id == job)).one_or_none()
        full = row is not None and remaining_bytes(connection, row.owner, service.config.limits) <= 0
    if row is None or row.agent != agent or row.attempt != attempt:
        raise RequestError(409, f"job {job} does not belong to this agent any more", hint="drop it")
    logs = JobLogs(service.config.folder)
    limit = MAX_LOG_BYTES_OVER_QUOTA if full else MAX_LOG_BYTES
    size = logs.append(job, attempt, position.offset, data, limit=limit)
    update = job_table.update().where(job_table.c.id == job).values(printed=logs.size(job))
    service.write(lambda transaction: transaction.execute(update) and None)
    return size
