"""Reads jobs from the database, as the API and the dashboard show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from clew.client.job import ACTIVE_STATES, FINAL_STATES, Job, JobDetail
from clew.server.accounts.caller import Caller
from clew.server.database.tables import agents, groups, job_events, jobs, runs, users
from clew.server.problems import not_found

_DETAIL_COLUMNS = ("spec", "files", "arguments")
_SAME_NAMES = (
    "id",
    "name",
    "kind",
    "state",
    "reason",
    "attempt",
    "priority",
    "resources",
    "dataset",
    *("study", "created", "ended"),
)
_LIST_COLUMNS = (*_SAME_NAMES, "attempts", "cancel", "exit_code", "begun", "facts")


@dataclass(frozen=True)
class JobFilter:
    """Which jobs to list; empty fields do not filter."""

    states: Sequence[str] = ()
    kind: str | None = None
    owner: str | None = None
    study: int | None = None
    """Only the trials of this study. Trials are not listed otherwise, except by their kind."""
    before: int | None = None
    """Only jobs with a smaller id."""


def visible_job(connection: sa.Connection, caller: Caller, job: int) -> Any:
    """Return the row of a job that the caller may see.

    Raises:
        RequestError: there is none (404).
    """
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job)).one_or_none()
    if row is None or caller.job is not None or not caller.can_see(row):
        raise not_found("job", job)
    return row


def list_jobs(
    connection: sa.Connection, caller: Caller, selection: JobFilter | None = None, *, limit: int = 100
) -> list[Job]:
    """Return the jobs that the caller may see, the newest first."""
    selection = selection or JobFilter()
    query = _select_jobs().where(caller.visible(jobs)).order_by(jobs.c.id.desc()).limit(limit)
    if selection.states:
        query = query.where(jobs.c.state.in_(selection.states))
    if selection.study is not None:
        query = query.where(jobs.c.study == selection.study, jobs.c.kind == "trial")
    elif selection.kind is not None:
        query = query.where(jobs.c.kind == selection.kind)
    else:
        query = query.where(jobs.c.kind != "trial")
    if selection.owner is not None:
        query = query.where(users.c.name == selection.owner)
    if selection.before is not None:
        query = query.where(jobs.c.id < selection.before)
    return [Job.model_validate(_job_values(row)) for row in connection.execute(query).mappings()]


def job_detail(connection: sa.Connection, caller: Caller, job: int, *, quota: int | None = None) -> JobDetail:
    """Return a job with all that it was submitted with.

    Args:
        connection: An open connection.
        caller: The job is returned as this caller may see it.
        job: Id of the job.
        quota: Running jobs per user, for users without a quota of their own. With it, the reason of a waiting job says
            whether the quota holds it back.

    Raises:
        RequestError: there is none that the caller may see (404).
    """
    owner = int(visible_job(connection, caller, job).owner)
    row = connection.execute(_select_jobs(detail=True).where(jobs.c.id == job)).mappings().one()
    facts = row["facts"] or {}
    detail = {"spec": row["spec"], "arguments": row["arguments"], "files": row["files"] or {}}
    detail |= {"target_job": facts.get("of"), "store": facts.get("store")}
    result = JobDetail.model_validate({**_job_values(row), **detail})
    if quota is not None and result.state == "waiting" and not result.reason:
        return result.model_copy(update={"reason": _quota_reason(connection, owner, quota)})
    return result


def _quota_reason(connection: sa.Connection, owner: int, default: int) -> str:
    """Say that an owner has as many running jobs as allowed; empty if more may start."""
    name, own = connection.execute(sa.select(users.c.name, users.c.quota_jobs).where(users.c.id == owner)).one()
    limit = default if own is None else own
    query = sa.select(sa.func.count()).where(jobs.c.owner == owner, jobs.c.state.in_(ACTIVE_STATES))
    running = connection.scalar(query) or 0
    return "" if running < limit else f"quota: {running} jobs of {name} run, and no more than {limit} may"


def job_history(connection: sa.Connection, job: int, *, limit: int, after: int = 0) -> list[dict[str, Any]]:
    """Return the events of a job, the oldest first."""
    query = sa.select(job_events).where(job_events.c.job == job, job_events.c.id > after)
    rows = connection.execute(query.order_by(job_events.c.id).limit(limit)).mappings()
    return [{name: row[name] for name in ("id", "time", "kind", "message")} for row in rows]


def active_jobs(connection: sa.Connection, agent: int) -> int:
    """Return the number of jobs that an agent holds."""
    query = sa.select(sa.func.count()).where(jobs.c.agent == agent, jobs.c.state.in_(ACTIVE_STATES))
    return int(connection.execute(query).scalar_one())


def _select_jobs(*, detail: bool = False) -> Any:
    newest_run = sa.select(sa.func.max(runs.c.id)).where(runs.c.job == jobs.c.id).scalar_subquery()
    names = (*_LIST_COLUMNS, *(_DETAIL_COLUMNS if detail else ()))
    labels = (
        users.c.name.label("owner_name"),
        groups.c.name.label("group_name"),
        agents.c.name.label("agent_name"),
        newest_run.label("newest_run"),
    )
    joined = jobs.join(users, users.c.id == jobs.c.owner).outerjoin(groups, groups.c.id == jobs.c.group)
    joined = joined.outerjoin(agents, agents.c.id == jobs.c.agent)
    return sa.select(*(jobs.c[name] for name in names), *labels).select_from(joined)


def _job_values(row: sa.RowMapping) -> dict[str, Any]:
    facts = row["facts"] or {}
    return {name: row[name] for name in _SAME_NAMES} | {
        "owner": row["owner_name"],
        "group": row["group_name"],
        "agent": row["agent_name"],
        "run": row["newest_run"],
        "requeue": row["attempts"] - 1,
        "cancelling": row["cancel"] is not None and row["state"] not in FINAL_STATES,
        "exit_code": row["exit_code"],
        "peak_memory": facts.get("memory"),
        "stored": facts.get("stored"),
        "retry_of": facts.get("retry_of"),
        "started": row["begun"],
    }
