"""Pages of jobs: the queue, and one page per job."""

from __future__ import annotations

import time
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Query, Request, Response

from clew.client.job import Job, JobDetail, Resources
from clew.core.config import to_yaml
from clew.server.accounts.caller import Caller
from clew.server.api.dependencies import Number
from clew.server.dashboard import layout
from clew.server.dashboard.earlier_job import can_be_changed
from clew.server.dashboard.foreign_code import brings_code
from clew.server.dashboard.formatting import duration, size
from clew.server.database.tables import studies
from clew.server.jobs.job_logs import JobLogs
from clew.server.jobs.job_rows import JobFilter, job_detail, job_history, list_jobs

router = layout.router()
STATES = ("waiting", "claimed", "running", "done", "failed", "cancelled", "lost")
_PAGE = 50
_SEARCHED = 2000
"""Jobs that a search considers."""
_LOG_BYTES = 200_000
"""Bytes of a log on the page; the API has all of it."""


@router.get("/jobs")
def queue(
    request: Request,
    viewer: layout.Viewer,
    q: Annotated[str, Query(max_length=200)] = "",
    state: str = "",
    after: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> Response:
    """The list of jobs, the newest first."""
    selection = JobFilter((state,) if state in STATES else (), before=after)
    with request.app.state.service.database.read() as connection:
        jobs = list_jobs(connection, viewer, selection, limit=_SEARCHED if q else _PAGE + 1)
    jobs = [each for each in jobs if q.lower() in f"{each.id} {each.name} {each.kind} {each.owner}".lower()]
    following = layout.link("/jobs", q=q, state=state, after=jobs[_PAGE - 1].id) if len(jobs) > _PAGE else None
    rows = [{**job_values(each), "may_change": "submit" in viewer.scopes} for each in jobs[:_PAGE]]
    return layout.page(request, "jobs.html", "jobs", jobs=rows, q=q, state=state, states=STATES, next=following)


@router.get("/jobs/{number}")
def job(request: Request, viewer: layout.Viewer, number: Number) -> Response:
    """The page of a job: its state, its history and its log."""
    service = request.app.state.service
    with service.database.read() as connection:
        detail = job_detail(connection, viewer, number, quota=service.config.limits.quota_jobs)
        events = job_history(connection, number, limit=200)
        study = detail.study or connection.scalar(sa.select(studies.c.id).where(studies.c.job == number).limit(1))
    log = JobLogs(service.config.folder).tail(number, detail.attempt, _LOG_BYTES)
    resources = [*resource_texts(detail.resources), ("priority", str(detail.priority))]
    values: dict[str, Any] = {
        "job": {**job_values(detail), "may_change": "submit" in viewer.scopes},
        "study": study,
        "again": "submit" in viewer.scopes and can_be_changed(detail) and _may_copy(detail, viewer),
        "log": log.text,
        "log_next": log.next,
        "yaml": to_yaml(detail.spec),
        "events": events,
        "resources": [*resources, ("dataset", detail.dataset or "–"), *_stored(detail)],
    }
    return layout.page(request, "job.html", "jobs", **values)


def _may_copy(job: JobDetail, viewer: Caller) -> bool:
    return job.owner == viewer.name or not brings_code(job.spec, job.files)


def _stored(job: JobDetail) -> list[tuple[str, str]]:
    return [] if job.store is None else [("stored at" if job.stored else "store", job.stored or job.store)]


def job_values(job: Job) -> dict[str, Any]:
    """Return the values that templates show of a job."""
    seconds = None if job.started is None else max((job.ended or time.time()) - job.started, 0.0)
    resources = ", ".join(text for _, text in resource_texts(job.resources) if text)
    reason = "is being cancelled" if job.cancelling else job.reason
    values = {"needs": resources, "seconds": seconds, "url": f"/jobs/{job.id}", "reason": reason}
    return {**job.model_dump(), **values}


def resource_texts(resources: Resources) -> list[tuple[str, str]]:
    """Return the resources of a job as pairs of name and text."""
    texts = [("workers", _counted(resources.workers, "worker"))] if resources.workers > 1 else []
    texts.append(("cores", _counted(resources.total_cpus, "core")))
    if resources.total_gpus:
        texts.append(("GPUs", _counted(resources.total_gpus, "GPU")))
    if resources.total_memory:
        texts.append(("memory", size(resources.total_memory)))
    if resources.nodes > 1:
        texts.append(("nodes", _counted(resources.nodes, "node")))
    if resources.wall_time:
        texts.append(("wall time", duration(resources.wall_time)))
    if resources.container:
        texts.append(("container", resources.container))
    return texts


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"
