"""Agents: they introduce themselves, ask for work, and tell of it."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from clew.client.agent_messages import Agent, Answer, Introduction, Kept, Known, Poll, Size
from clew.client.job import Result
from clew.server.accounts.callers import Caller
from clew.server.api.dependencies import LARGEST, PROBLEMS, AgentOf, Number, Page, Reader, ServiceOf, Submitter
from clew.server.database.tables import jobs as table
from clew.server.database.writer import Change
from clew.server.events.notifications import heard
from clew.server.jobs import actions, agents, queue
from clew.server.jobs.job_logs import LEAST, MOST, Logs
from clew.server.problems import RefusedError
from clew.server.service import Service
from clew.server.storage.quota import left

router = APIRouter(prefix="/api/v1", tags=["agents"], responses=PROBLEMS)
_PIECE = 1_000_000


@router.post("/agents", status_code=201)
async def introduce(service: ServiceOf, caller: AgentOf, body: Introduction) -> Known:
    """An agent says who it is and what it has to give."""
    number = await service.write_soon(lambda change: agents.introduce(change, caller, body))
    return Known(id=number, lease=queue.LEASE)


@router.get("/agents")
def list_agents(service: ServiceOf, caller: Reader) -> Page[Agent]:
    """Agents that I may see."""
    with service.database.read() as connection:
        return Page(items=agents.listed(connection, caller))


@router.delete("/agents/{agent}", status_code=204)
async def dismiss(service: ServiceOf, caller: Submitter, agent: Number) -> None:
    """Forget one that has no jobs."""
    await service.write_soon(lambda change: agents.dismiss(change, caller, agent))


@router.post("/agents/{agent}/poll")
async def poll(request: Request, service: ServiceOf, caller: AgentOf, agent: Number, body: Poll) -> Answer:
    """What is there to do; the answer comes when there is something, or after `wait` seconds."""
    end, first = time.monotonic() + body.wait, True
    with service.hub.listening(actions.QUEUE) as ear:
        while True:
            work = partial(agents.answer, service=service, caller=caller, agent=agent, poll=body, first=first)
            found = await service.write_soon(work)
            left = end - time.monotonic()
            if not found.empty or left <= 0 or service.hub.stopping:
                return found
            first = False
            woken = await heard(ear, left)
            if not woken or await request.is_disconnected():
                return Answer()


@router.post("/agents/{agent}/jobs/{job}")
async def report(service: ServiceOf, caller: AgentOf, agent: Number, job: Number, body: Result) -> Kept:
    """How a job is. Told twice, it counts once."""

    def work(change: Change) -> bool:
        agents.owned(change.connection, caller, agent)
        queue.seen(change, agent, now=time.time())
        kept = queue.report(change, agent, job, body)
        change.tell(actions.ALL, actions.topic(job), *(() if body.state == "running" else (actions.QUEUE,)))
        if body.state != "running":
            change.after.append(service.people.forget)
        return kept

    return Kept(kept=await service.write_soon(work))


@router.post(
    "/agents/{agent}/jobs/{job}/log",
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}},
)
async def append(
    request: Request,
    service: ServiceOf,
    caller: AgentOf,
    agent: Number,
    job: Number,
    attempt: Annotated[int, Query(ge=1, le=LARGEST)],
    offset: Annotated[int, Query(ge=0, le=LARGEST)],
) -> Size:
    """More of what a job printed, from a byte on; the answer says from where to go on."""
    data = await request.body()
    if len(data) > _PIECE:
        raise RefusedError(413, f"more than {_PIECE:,} bytes at a time", do="send less at a time")
    size = await run_in_threadpool(_append, service, caller, agent, job, attempt, offset, data)
    service.hub.tell([actions.topic(job)])
    return Size(size=size)


def _append(service: Service, caller: Caller, agent: int, job: int, attempt: int, offset: int, data: bytes) -> int:
    with service.database.read() as connection:
        agents.owned(connection, caller, agent)
        named = (table.c.agent, table.c.attempt, table.c.owner)
        row = connection.execute(sa.select(*named).where(table.c.id == job)).one_or_none()
        full = row is not None and left(connection, row.owner, service.config.limits) <= 0
    if row is None or row.agent != agent or row.attempt != attempt:
        raise RefusedError(409, f"job {job} is not this agent's any more", do="drop it")
    logs = Logs(service.config.folder)
    size = logs.append(job, attempt, offset, data, most=LEAST if full else MOST)
    counted = table.update().where(table.c.id == job).values(printed=logs.size(job))
    service.write(lambda change: change.execute(counted) and None)
    return size
