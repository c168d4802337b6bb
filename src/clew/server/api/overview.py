"""The overview: what runs, what waits, what failed, and how busy the agents are."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter
from pydantic import BaseModel

from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import PROBLEMS, Reader, ServiceOf
from clew.server.api.runs import RunRow, run_rows, visible_runs
from clew.server.database.tables import agents, jobs, runs
from clew.server.jobs.queue import is_alive
from clew.server.storage.quota import storage_quota, stored_bytes

router = APIRouter(prefix="/api/v1", tags=["overview"], responses=PROBLEMS)
_LIST_LENGTH = 20


class JobOverview(BaseModel):
    """The main facts of a job; `/api/v1/jobs` has the others."""

    id: int
    owner: int
    name: str
    kind: str
    state: str
    priority: int
    agent: int | None
    run: int | None
    reason: str
    created: float
    updated: float


class AgentOverview(BaseModel):
    """An agent and the load of its machine."""

    id: int
    name: str
    host: str
    slots: Any
    load: Any
    seen: float
    alive: bool


class Overview(BaseModel):
    """What one user sees. Lists have at most 20 items; counts are complete."""

    time: float
    runs: dict[str, int]
    """Number of runs by state."""
    running: list[RunRow]
    failed: list[RunRow]
    recent: list[RunRow]
    jobs: dict[str, int]
    """Number of jobs by state."""
    waiting: list[JobOverview]
    active: list[JobOverview]
    agents: list[AgentOverview]
    storage: int
    """Bytes of the user's artefacts and logs."""
    quota: int
    """Bytes that the user may store."""


@router.get("/overview")
def overview(service: ServiceOf, caller: Reader) -> Overview:
    """Return what runs, what waits and what failed; agents; storage."""
    with service.database.read() as connection:
        return Overview(
            time=time.time(),
            runs=_counts(connection, runs, caller),
            running=_newest_runs(connection, caller, "running"),
            failed=_newest_runs(connection, caller, "failed", "interrupted"),
            recent=_newest_runs(connection, caller),
            jobs=_counts(connection, jobs, caller),
            waiting=_jobs(connection, caller, "waiting"),
            active=_jobs(connection, caller, "claimed", "running"),
            agents=_agents(connection, caller, service.config.limits.agent_seconds),
            storage=stored_bytes(connection, caller.user),
            quota=storage_quota(connection, caller.user, service.config.limits),
        )


def _counts(connection: sa.Connection, table: sa.Table, caller: Caller) -> dict[str, int]:
    query = sa.select(table.c.state, sa.func.count()).where(caller.visible(table)).group_by(table.c.state)
    return {str(state): int(count) for state, count in connection.execute(query)}


def _newest_runs(connection: sa.Connection, caller: Caller, *states: str) -> list[RunRow]:
    query = visible_runs(caller).order_by(runs.c.updated.desc()).limit(_LIST_LENGTH)
    if states:
        query = query.where(runs.c.state.in_(states))
    return run_rows(connection, [dict(row) for row in connection.execute(query).mappings()])


def _jobs(connection: sa.Connection, caller: Caller, *states: str) -> list[JobOverview]:
    columns = [jobs.c[name] for name in JobOverview.model_fields]
    query = sa.select(*columns).where(caller.visible(jobs), jobs.c.state.in_(states))
    query = query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(_LIST_LENGTH)
    return [JobOverview(**row) for row in connection.execute(query).mappings()]


def _agents(connection: sa.Connection, caller: Caller, timeout: float) -> list[AgentOverview]:
    columns = [agents.c[name] for name in AgentOverview.model_fields if name != "alive"]
    query = sa.select(*columns).where(caller.visible(agents)).order_by(agents.c.seen.desc()).limit(100)
    rows = connection.execute(query).mappings()
    return [AgentOverview(**row, alive=is_alive(row["seen"], timeout=timeout)) for row in rows]
