"""Jobs in the database: submitted, looked at, cancelled, tried again, handed to agents."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from clew.client.job import ACTIVE, ENDS, Job, JobDetail, Order, Submission
from clew.server.accounts.callers import Caller, add_token, record
from clew.server.database.tables import agents, datasets, groups, job_events, jobs, runs, users
from clew.server.database.writer import Change
from clew.server.jobs import queue
from clew.server.problems import RefusedError, missing

QUEUE = "queue"
"""The topic that agents listen to."""
ALL = "jobs"
"""The topic of whoever shows them."""
_SPARE = 86400.0
"""Seconds that a job's token outlives its wall time."""
_LONG = 90 * 86400.0
"""And where it has none: at most so long."""


def topic(job: int) -> str:
    """What tells of a job."""
    return f"job:{job}"


def submit(change: Change, caller: Caller, given: Submission, *, retry_of: int | None = None) -> int:
    """Put a job into the queue; its number.

    Raises:
        RefusedError: the group is not the caller's, or there is no job to evaluate.
    """
    now, group, uid = time.time(), caller.group(given.group, change.connection), given.uid or secrets.token_hex(8)
    known = change.scalar(sa.select(jobs.c.id).where(jobs.c.owner == caller.user, jobs.c.handle == uid))
    if known is not None:
        return int(known)
    pinned = None if given.of is None else _judged(change, caller, given.of).agent
    facts = {"of": given.of, "retry_of": retry_of, "memory": None}
    row = given.model_dump(include={"name", "kind", "spec", "files", "arguments", "priority", "dataset"}, mode="json")
    row |= {"owner": caller.user, "group": group, "resources": given.resources.model_dump(), "facts": facts}
    row |= {
        "state": "waiting",
        "attempt": 0,
        "attempts": given.requeue + 1,
        "agent": pinned,
        "reason": "",
        "handle": uid,
    }
    job = change.add(jobs, **row, created=now, updated=now)
    queue.note(change, job, "submitted", f"by {caller.name}", now=now)
    record(change, caller, "submit", topic(job), name=given.name, kind=given.kind)
    change.tell(QUEUE, ALL, topic(job))
    return job


def _judged(change: Change, caller: Caller, job: int) -> Any:
    """A training of the caller's own that has run somewhere."""
    row = find(change.connection, caller, job)
    if row.owner != caller.user or row.kind != "train" or row.agent is None:
        told = "name a training of your own that an agent has run"
        raise RefusedError(409, f"the run of job {job} cannot be judged", where="of", do=told)
    return row


def find(connection: sa.Connection, caller: Caller, job: int) -> Any:
    """The row of a job that the caller may see.

    Raises:
        RefusedError: there is none.
    """
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job)).one_or_none()
    if row is None or caller.job is not None or not caller.sees(row):
        raise missing("job", job)
    return row


def cancel(change: Change, caller: Caller, job: int) -> None:
    """Have a job end: at once where it waits, soon where it runs.

    Raises:
        RefusedError: it has ended.
    """
    row, now = find(change.connection, caller, job), time.time()
    if row.state in ENDS:
        raise RefusedError(409, f"job {job} has ended: {row.state}", do="there is nothing to cancel")
    values = {"cancel": row.cancel or now, "updated": now}
    if row.state == "waiting":
        values |= {"state": "cancelled", "ended": now, "reason": "cancelled before it began"}
        queue.revoke(change, job, now=now)  # its agent may only have been silent
    change.execute(jobs.update().where(jobs.c.id == job).values(values))
    queue.note(change, job, "cancelled" if row.state == "waiting" else "cancel", f"by {caller.name}", now=now)
    record(change, caller, "cancel", topic(job))
    change.tell(QUEUE, ALL, topic(job))


def requeue(change: Change, caller: Caller, job: int) -> None:
    """Put a job that ended back into the queue: it goes on where it stopped, on the agent that has its files.

    Raises:
        RefusedError: it waits or runs.
    """
    row, now = find(change.connection, caller, job), time.time()
    if row.state not in ENDS:
        raise RefusedError(409, f"job {job} is {row.state}", do="wait until it has ended, or cancel it")
    if row.state == "done":
        raise RefusedError(409, f"job {job} is done", do=f"begin anew with: clew retry {job}")
    attempts = max(row.attempts, row.attempt + 1)
    values = {"state": "waiting", "cancel": None, "ended": None, "attempts": attempts, "reason": "", "updated": now}
    change.execute(jobs.update().where(jobs.c.id == job).values(values))
    queue.revoke(change, job, now=now)
    queue.note(change, job, "requeued", f"by {caller.name}", now=now)
    record(change, caller, "requeue", topic(job))
    change.tell(QUEUE, ALL, topic(job))


def retry(change: Change, caller: Caller, job: int) -> int:
    """A new job like another, from the start; its number."""
    row = find(change.connection, caller, job)
    group = None
    if row.group is not None:
        group = change.scalar(sa.select(groups.c.name).where(groups.c.id == row.group))
    given = Submission.model_validate(
        {
            **{name: getattr(row, name) for name in ("kind", "name", "spec", "arguments", "resources", "priority")},
            "files": row.files or {},
            "of": row.facts["of"],
            "dataset": row.dataset,
            "requeue": row.attempts - 1,
            "group": group,
        }
    )
    return submit(change, caller, given, retry_of=job)


def _columns(detail: bool) -> list[Any]:
    newest = sa.select(sa.func.max(runs.c.id)).where(runs.c.job == jobs.c.id).scalar_subquery()
    names = ["id", "name", "kind", "state", "reason", "attempt", "attempts", "priority", "resources", "dataset"]
    names += [
        "cancel",
        "exit_code",
        "created",
        "begun",
        "ended",
        "facts",
        *(("spec", "files", "arguments") if detail else ()),
    ]
    found: list[Any] = [jobs.c[name] for name in names]
    return [
        *found,
        users.c.name.label("person"),
        groups.c.name.label("team"),
        agents.c.name.label("where"),
        newest.label("newest"),
    ]


def _selected(detail: bool = False) -> Any:
    joined = jobs.join(users, users.c.id == jobs.c.owner).outerjoin(groups, groups.c.id == jobs.c.group)
    return sa.select(*_columns(detail)).select_from(joined.outerjoin(agents, agents.c.id == jobs.c.agent))


def _told(row: sa.RowMapping) -> dict[str, Any]:
    same = ("id", "name", "kind", "state", "reason", "attempt", "priority", "resources", "dataset", "created", "ended")
    facts = row["facts"] or {}
    return {name: row[name] for name in same} | {
        "owner": row["person"],
        "group": row["team"],
        "agent": row["where"],
        "run": row["newest"],
        "requeue": row["attempts"] - 1,
        "cancelling": row["cancel"] is not None and row["state"] not in ENDS,
        "code": row["exit_code"],
        "memory": facts.get("memory"),
        "retry_of": facts.get("retry_of"),
        "started": row["begun"],
    }


def listed(
    connection: sa.Connection,
    caller: Caller,
    *,
    state: Sequence[str] = (),
    kind: str | None = None,
    owner: str | None = None,
    limit: int = 100,
    before: int | None = None,
) -> list[Job]:
    """Jobs that the caller may see, the newest first."""
    query = _selected().where(caller.seen(jobs)).order_by(jobs.c.id.desc()).limit(limit)
    if state:
        query = query.where(jobs.c.state.in_(state))
    if kind is not None:
        query = query.where(jobs.c.kind == kind)
    if owner is not None:
        query = query.where(users.c.name == owner)
    if before is not None:
        query = query.where(jobs.c.id < before)
    return [Job.model_validate(_told(row)) for row in connection.execute(query).mappings()]


def one(connection: sa.Connection, caller: Caller, job: int) -> JobDetail:
    """Everything about a job.

    Raises:
        RefusedError: there is none that the caller may see.
    """
    find(connection, caller, job)
    row = connection.execute(_selected(detail=True).where(jobs.c.id == job)).mappings().one()
    facts = row["facts"] or {}
    own = {"spec": row["spec"], "arguments": row["arguments"], "files": row["files"] or {}, "of": facts.get("of")}
    return JobDetail.model_validate(_told(row) | own)


def events(connection: sa.Connection, job: int, *, limit: int, after: int = 0) -> list[dict[str, Any]]:
    """What happened to a job, the oldest first."""
    query = sa.select(job_events).where(job_events.c.job == job, job_events.c.id > after)
    rows = connection.execute(query.order_by(job_events.c.id).limit(limit)).mappings()
    return [{name: row[name] for name in ("id", "time", "kind", "message")} for row in rows]


def order(change: Change, job: int) -> Order:
    """What an agent needs to run a job, with a token of its own; those it had before are void."""
    row = change.execute(sa.select(jobs).where(jobs.c.id == job)).mappings().one()
    now, wall = time.time(), row["resources"].get("wall_time")
    queue.revoke(change, job, now=now)
    until = now + (_LONG if wall is None else wall + _SPARE)
    whose = row["facts"]["of"] or job  # what judges a run adds to it
    name = queue.token_name(job)
    _, secret = add_token(change, row["owner"], ["job"], name=name, kind="job", job=whose, expires=until)
    return Order(
        job=job,
        key=_key(row),
        attempt=row["attempt"],
        kind=row["kind"],
        name=row["name"],
        spec=row["spec"],
        files=row["files"] or {},
        arguments=row["arguments"],
        of=_key_of(change, row["facts"]["of"]),
        dataset=row["dataset"],
        places=_places(change, row),
        resources=row["resources"],
        token=secret,
    )


def _key(row: sa.RowMapping) -> str:
    return f"{row['id']}-{row['handle']}"


def _key_of(change: Change, job: int | None) -> str | None:
    row = change.execute(sa.select(jobs.c.id, jobs.c.handle).where(jobs.c.id == job)).mappings().first()
    return None if row is None else _key(row)


def _places(change: Change, row: sa.RowMapping) -> tuple[str, ...]:
    """Where a dataset is said to lie that the job names by its key: those that the job's owner or group has."""
    if row["dataset"] is None:
        return ()
    mine = datasets.c.owner == row["owner"]
    if row["group"] is not None:
        mine = mine | (datasets.c.group == row["group"])
    query = sa.select(datasets.c.location).where(datasets.c.key == row["dataset"], mine)
    return tuple(change.execute(query.order_by(datasets.c.id.desc()).limit(16)).scalars())


def active(connection: sa.Connection, agent: int) -> list[Any]:
    """The resources of jobs that an agent has."""
    query = sa.select(jobs.c.resources).where(jobs.c.agent == agent, jobs.c.state.in_(ACTIVE))
    return list(connection.execute(query).scalars())
