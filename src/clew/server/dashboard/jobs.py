"""The queue, and a page for each job."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import Query, Request, Response

from clew.client.job import Job, Resources
from clew.core.config import to_yaml
from clew.server.api.dependencies import Number
from clew.server.dashboard import layout
from clew.server.dashboard.formatting import length, size
from clew.server.jobs import actions as kept
from clew.server.jobs.job_logs import Logs

router = layout.router()
STATES = ("waiting", "claimed", "running", "done", "failed", "cancelled", "lost")
_PAGE = 50
_TAIL = 200_000
"""Bytes of a log that come with the page; more is in the API."""


@router.get("/jobs")
def queue(
    request: Request,
    viewer: layout.Viewer,
    q: Annotated[str, Query(max_length=200)] = "",
    state: str = "",
    after: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Response:
    """Jobs, the newest first."""
    wanted = (state,) if state in STATES else ()
    with request.app.state.service.database.read() as connection:
        limit = 2000 if q else _PAGE + 1
        found = kept.listed(connection, viewer, state=wanted, limit=limit, before=after)
    found = [each for each in found if q.lower() in f"{each.id} {each.name} {each.kind} {each.owner}".lower()]
    more = layout.link("/jobs", q=q, state=state, after=found[_PAGE - 1].id) if len(found) > _PAGE else None
    listed = [{**shown(each), "may": "submit" in viewer.scopes} for each in found[:_PAGE]]
    return layout.page(request, "jobs.html", "jobs", jobs=listed, q=q, state=state, states=STATES, next=more)


@router.get("/jobs/{number}")
def job(request: Request, viewer: layout.Viewer, number: Number) -> Response:
    """One: how it stands, what happened, what it prints."""
    service = request.app.state.service
    with service.database.read() as connection:
        found = kept.one(connection, viewer, number)
        events = kept.events(connection, number, limit=200)
    logs = Logs(service.config.folder)
    end = logs.read(number, found.attempt, 1 << 62, 16).size
    piece = logs.read(number, found.attempt, max(0, end - _TAIL), _TAIL)
    values: dict[str, Any] = {
        "job": {**shown(found), "may": "submit" in viewer.scopes},
        "log": piece.text,
        "log_next": piece.next,
        "yaml": to_yaml(found.spec),
        "events": events,
        "resources": [*asked(found.resources), ("priority", str(found.priority)), ("dataset", found.dataset or "–")],
    }
    return layout.page(request, "job.html", "jobs", **values)


def shown(job: Job) -> dict[str, Any]:
    """A job as pages have it."""
    told = job.model_dump()
    took = None if job.started is None else max((job.ended or time.time()) - job.started, 0.0)
    asks = ", ".join(text for _, text in asked(job.resources) if text)
    reason = "is being cancelled" if job.cancelling else job.reason
    return {**told, "asks": asks, "seconds": took, "study": None, "url": f"/jobs/{job.id}", "reason": reason}


def asked(resources: Resources) -> list[tuple[str, str]]:
    """What a job needs, in words."""
    cores, gpus, memory = resources.total_cpus, resources.total_gpus, resources.total_memory
    found = [("workers", f"{resources.workers} workers")] if resources.workers > 1 else []
    found.append(("cores", f"{cores} core{'s' if cores > 1 else ''}"))
    if gpus:
        found.append(("GPUs", f"{gpus} GPU{'s' if gpus > 1 else ''}"))
    if memory:
        found.append(("memory", size(memory)))
    if resources.nodes > 1:
        found.append(("nodes", f"{resources.nodes} nodes"))
    if resources.wall_time:
        found.append(("wall time", length(resources.wall_time)))
    return found
