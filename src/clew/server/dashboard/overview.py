"""The front page: what runs, what waits, what failed and why, how busy the machines are."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from fastapi import Request, Response

from clew.client.agent_messages import Agent
from clew.server.accounts.callers import Caller
from clew.server.api.runs import listed, rows
from clew.server.dashboard import layout
from clew.server.dashboard.jobs import shown
from clew.server.dashboard.run_cards import glimpses
from clew.server.database.tables import jobs, runs
from clew.server.jobs import agents
from clew.server.jobs.actions import listed as listed_jobs

router = layout.router()
_DAY = 86400.0
_ENDED_BADLY = ("failed", "interrupted")


@router.get("/")
def overview(request: Request, viewer: layout.Viewer) -> Response:
    """What goes on."""
    with request.app.state.service.database.read() as connection:
        values = gather(connection, viewer)
    return layout.page(request, "overview.html", "overview", server=layout.server(request), **values)


def gather(connection: sa.Connection, viewer: Caller) -> dict[str, Any]:
    """All that the page shows."""
    since = time.time() - _DAY
    running = _runs(connection, viewer, runs.c.state == "running", runs.c.updated > since, limit=30)
    studied = sa.select(jobs.c.id).where(jobs.c.kind == "tune")
    alone = runs.c.study.is_(None), sa.or_(runs.c.job.is_(None), runs.c.job.not_in(studied))
    recent = _runs(connection, viewer, *alone, limit=12)
    going = listed_jobs(connection, viewer, state=("claimed", "running"), limit=1000)
    waiting = listed_jobs(connection, viewer, state=("waiting",), limit=1000)
    finished = sa.select(sa.func.count()).where(viewer.seen(runs), runs.c.state == "finished", runs.c.ended > since)
    return {
        "jobs": {"running": going, "waiting": [shown(each) for each in waiting]},
        "running": running,
        "recent": recent,
        "failed": _failed(connection, viewer, since),
        "finished": connection.scalar(finished) or 0,
        "speed": sum(run["samples_per_second"] for run in running),
        "agents": [machine(each) for each in agents.listed(connection, viewer)],
    }


def machine(agent: Agent) -> dict[str, Any]:
    """An agent as a few gauges."""
    load = agent.load
    return {
        "name": agent.name,
        "up": agent.alive,
        "seen": agent.seen,
        "slots": agent.slots,
        "used": {"cpus": agent.used.cpus if agent.used else 0, "gpus": agent.used.gpus if agent.used else 0},
        "load": {"cpu": load.cpu / 100, "memory": load.memory / 100} if load is not None else {},
    }


def _runs(connection: sa.Connection, viewer: Caller, *which: Any, limit: int) -> list[dict[str, Any]]:
    query = listed(viewer).where(*which).order_by(runs.c.id.desc()).limit(limit)
    found = [dict(row) for row in connection.execute(query).mappings()]
    return glimpses(connection, rows(connection, found))


def _failed(connection: sa.Connection, viewer: Caller, since: float) -> list[dict[str, Any]]:
    """Jobs that failed or were lost, and runs that no job stands for, the newest first."""
    bad = [
        each
        for each in listed_jobs(connection, viewer, state=("failed", "lost"), limit=50)
        if (each.ended or 0) > since
    ]
    found = [
        {"name": each.name, "url": f"/jobs/{each.id}", "ended": each.ended, "owner": each.owner, "reason": each.reason}
        for each in bad
    ]
    own = listed(viewer).where(runs.c.state.in_(_ENDED_BADLY), runs.c.job.is_(None), runs.c.updated > since)
    for row in connection.execute(own.order_by(runs.c.id.desc()).limit(50)).mappings():
        ended = row["ended"] or row["updated"]
        told = {"name": row["name"], "url": f"/runs/{row['id']}", "ended": ended, "owner": row["owner_name"]}
        found.append({**told, "reason": row["message"] or f"{row['state']} without a word"})
    return sorted(found, key=lambda each: -(each["ended"] or 0))
