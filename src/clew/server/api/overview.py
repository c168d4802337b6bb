"""The first page: what runs, what waits, what failed and why, what the machines do."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter
from pydantic import BaseModel

from clew.server.accounts.callers import Caller
from clew.server.api.dependencies import PROBLEMS, Reader, ServiceOf
from clew.server.api.runs import RunRow, listed, rows
from clew.server.database.tables import agents, jobs, runs
from clew.server.jobs import queue
from clew.server.storage.quota import quota, used

router = APIRouter(prefix="/api/v1", tags=["overview"], responses=PROBLEMS)
_FEW = 20


class JobLine(BaseModel):
    """A job in a few words; `/api/v1/jobs` has the rest."""

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


class AgentLine(BaseModel):
    """An agent and what its machine does."""

    id: int
    name: str
    host: str
    slots: Any
    load: Any
    seen: float
    away: bool


class Overview(BaseModel):
    """What one person sees. Lists are cut to 20, counts are not."""

    time: float
    runs: dict[str, int]
    """How many, by state."""
    running: list[RunRow]
    failed: list[RunRow]
    recent: list[RunRow]
    jobs: dict[str, int]
    waiting: list[JobLine]
    active: list[JobLine]
    agents: list[AgentLine]
    storage: int
    """Bytes of artefacts and logs that are mine."""
    quota: int


@router.get("/overview")
def overview(service: ServiceOf, caller: Reader) -> Overview:
    """What runs, what waits, what failed and why; agents; storage."""
    with service.database.read() as connection:
        chosen = [_newest(connection, caller, *states) for states in (("running",), ("failed", "interrupted"), ())]
        return Overview(
            time=time.time(),
            runs=_counts(connection, runs, caller),
            running=chosen[0],
            failed=chosen[1],
            recent=chosen[2],
            jobs=_counts(connection, jobs, caller),
            waiting=_jobs(connection, caller, "waiting"),
            active=_jobs(connection, caller, "claimed", "running"),
            agents=_agents(connection, caller),
            storage=used(connection, caller.user),
            quota=quota(connection, caller.user, service.config.limits),
        )


def _counts(connection: sa.Connection, table: sa.Table, caller: Caller) -> dict[str, int]:
    query = sa.select(table.c.state, sa.func.count()).where(caller.seen(table)).group_by(table.c.state)
    return {str(state): int(count) for state, count in connection.execute(query)}


def _newest(connection: sa.Connection, caller: Caller, *states: str) -> list[RunRow]:
    query = listed(caller).order_by(runs.c.updated.desc()).limit(_FEW)
    if states:
        query = query.where(runs.c.state.in_(states))
    return rows(connection, [dict(row) for row in connection.execute(query).mappings()])


def _jobs(connection: sa.Connection, caller: Caller, *states: str) -> list[JobLine]:
    columns = [jobs.c[name] for name in JobLine.model_fields]
    query = sa.select(*columns).where(caller.seen(jobs), jobs.c.state.in_(states))
    query = query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(_FEW)
    return [JobLine(**row) for row in connection.execute(query).mappings()]


def _agents(connection: sa.Connection, caller: Caller) -> list[AgentLine]:
    columns = [agents.c[name] for name in AgentLine.model_fields if name != "away"]
    query = sa.select(*columns).where(caller.seen(agents)).order_by(agents.c.seen.desc()).limit(100)
    now = time.time()
    return [AgentLine(**row, away=now - row["seen"] >= queue.LEASE) for row in connection.execute(query).mappings()]
