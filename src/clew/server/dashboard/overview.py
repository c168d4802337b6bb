"""The front page: what runs, what waits, what failed and why, and how busy the agents are."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from fastapi import Request, Response

from clew.client.agent_messages import AgentInfo
from clew.server.accounts.caller import Caller
from clew.server.api.runs import run_rows, visible_runs
from clew.server.dashboard import layout
from clew.server.dashboard.jobs import job_values
from clew.server.dashboard.run_cards import run_cards
from clew.server.database.tables import jobs, runs
from clew.server.jobs.agents import list_agents
from clew.server.jobs.job_rows import JobFilter, list_jobs

router = layout.router()
_DAY = 86400.0
_FAILED_STATES = ("failed", "interrupted")


@router.get("/")
def overview(request: Request, viewer: layout.Viewer) -> Response:
    """The front page."""
    with request.app.state.service.database.read() as connection:
        values = gather(connection, viewer, request.app.state.service.config.limits.agent_seconds)
    return layout.page(request, "overview.html", "overview", server=layout.server(request), **values)


def gather(connection: sa.Connection, viewer: Caller, timeout: float) -> dict[str, Any]:
    """Return all values that the page shows; `timeout` is the seconds after which a silent agent counts as gone."""
    since = time.time() - _DAY
    running = _runs(connection, viewer, runs.c.state == "running", runs.c.updated > since, limit=30)
    tune_jobs = sa.select(jobs.c.id).where(jobs.c.kind.in_(("tune", "trial")))
    no_trials = runs.c.study.is_(None), sa.or_(runs.c.job.is_(None), runs.c.job.not_in(tune_jobs))
    recent = _runs(connection, viewer, *no_trials, limit=12)
    active = list_jobs(connection, viewer, JobFilter(("claimed", "running")), limit=1000)
    waiting = list_jobs(connection, viewer, JobFilter(("waiting",)), limit=1000)
    finished = sa.select(sa.func.count()).where(viewer.visible(runs), runs.c.state == "finished", runs.c.ended > since)
    return {
        "jobs": {"running": active, "waiting": [job_values(job) for job in waiting]},
        "running": running,
        "recent": recent,
        "failed": _failed(connection, viewer, since),
        "finished": connection.scalar(finished) or 0,
        "speed": sum(run["samples_per_second"] for run in running),
        "empty": not any(connection.scalar(_any_row(viewer, table)) for table in (runs, jobs)),
        "agents": [agent_gauges(agent) for agent in list_agents(connection, viewer, timeout=timeout)],
    }


def _any_row(viewer: Caller, table: sa.Table) -> sa.Select[Any]:
    return sa.select(table.c.id).where(viewer.visible(table)).limit(1)


def agent_gauges(agent: AgentInfo) -> dict[str, Any]:
    """Return the gauges of an agent."""
    load = agent.load
    return {
        "name": agent.name,
        "alive": agent.alive,
        "seen": agent.seen,
        "slots": agent.slots,
        "used": {"cpus": agent.used.cpus if agent.used else 0, "gpus": agent.used.gpus if agent.used else 0},
        "load": {"cpu": load.cpu / 100, "memory": load.memory / 100} if load is not None else {},
    }


def _runs(connection: sa.Connection, viewer: Caller, *conditions: Any, limit: int) -> list[dict[str, Any]]:
    query = visible_runs(viewer).where(runs.c.deleted.is_(None), *conditions).order_by(runs.c.id.desc()).limit(limit)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    return run_cards(connection, run_rows(connection, rows))


def _failed(connection: sa.Connection, viewer: Caller, since: float) -> list[dict[str, Any]]:
    """Return jobs that failed or were lost, and failed runs without a job, the newest first."""
    failed_jobs = list_jobs(connection, viewer, JobFilter(("failed", "lost")), limit=50)
    failures = [
        {"name": each.name, "url": f"/jobs/{each.id}", "ended": each.ended, "owner": each.owner, "reason": each.reason}
        for each in failed_jobs
        if (each.ended or 0) > since
    ]
    without_job = visible_runs(viewer).where(
        runs.c.state.in_(_FAILED_STATES), runs.c.job.is_(None), runs.c.deleted.is_(None), runs.c.updated > since
    )
    for row in connection.execute(without_job.order_by(runs.c.id.desc()).limit(50)).mappings():
        ended = row["ended"] or row["updated"]
        values = {"name": row["name"], "url": f"/runs/{row['id']}", "ended": ended, "owner": row["owner_name"]}
        failures.append({**values, "reason": row["message"] or f"{row['state']} without a message"})
    return sorted(failures, key=lambda each: -(each["ended"] or 0))
