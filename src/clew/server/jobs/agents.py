"""Agents in the database: who they are, whom they serve, what they have."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from clew.client.agent_messages import Agent, Answer, Introduction, Poll
from clew.client.job import ACTIVE, Resources
from clew.server.accounts.callers import Caller, record
from clew.server.database.tables import agents, groups, users
from clew.server.database.tables import jobs as job_table
from clew.server.database.writer import Change
from clew.server.jobs import actions, queue
from clew.server.problems import RefusedError, missing
from clew.server.service import Service


def introduce(change: Change, caller: Caller, given: Introduction) -> int:
    """Know an agent from now on; its number. One of the caller's of the same name and folder is the same agent.

    Raises:
        RefusedError: another has this name and is alive, or the group is not the caller's.
    """
    now, group = time.time(), caller.group(given.group, change.connection)
    mine = (agents.c.owner == caller.user) & (agents.c.name == given.name)
    row = change.execute(sa.select(agents).where(mine)).one_or_none()
    values: dict[str, Any] = {"group": group, "host": given.host, "version": given.version, "seen": now}
    values |= {"slots": given.slots.model_dump(), "facts": {"uid": given.uid}, "token": caller.token}
    if row is None:
        number = change.add(agents, **values, owner=caller.user, name=given.name, created=now)
    else:
        if row.facts["uid"] != given.uid and now - row.seen < queue.LEASE:
            raise RefusedError(
                409, f"another agent of yours is called {given.name}", where="name", do="choose another --name"
            )
        number = int(row.id)
        change.execute(agents.update().where(agents.c.id == number).values(values))
    record(change, caller, "agent", f"agent:{number}", name=given.name)
    return number


def owned(connection: sa.Connection, caller: Caller, agent: int) -> Any:
    """The row of an agent of the caller's own.

    Raises:
        RefusedError: there is none.
    """
    row = connection.execute(sa.select(agents).where(agents.c.id == agent)).one_or_none()
    if row is None or row.owner != caller.user or caller.job is not None:
        raise missing("agent", agent)
    return row


def answer(change: Change, service: Service, caller: Caller, agent: int, poll: Poll, *, first: bool) -> Answer:
    """What an agent is to do now. `first`: what it holds is compared; it is old by the time it is woken."""
    owned(change.connection, caller, agent)
    now = time.time()
    queue.seen(change, agent, load=None if poll.load is None else poll.load.model_dump(), now=now)
    again, foreign = queue.compare(change, agent, poll.held, now=now) if first else ([], [])
    new = queue.claim(change, agent, quota=service.config.limits.quota_jobs, now=now)
    orders = tuple(actions.order(change, job) for job in (*again, *new))
    if orders or foreign:
        change.after.append(service.people.forget)
        change.tell(actions.ALL, *(actions.topic(job) for job in (*again, *new)))
    return Answer(orders=orders, cancel=tuple(queue.to_cancel(change, agent)), drop=tuple(foreign))


def listed(connection: sa.Connection, caller: Caller) -> list[Agent]:
    """Agents that the caller may see."""
    joined = agents.join(users, users.c.id == agents.c.owner).outerjoin(groups, groups.c.id == agents.c.group)
    query = sa.select(agents, users.c.name.label("person"), groups.c.name.label("team")).select_from(joined)
    rows = connection.execute(query.where(caller.seen(agents)).order_by(agents.c.id)).mappings().all()
    taken: dict[int, list[Resources]] = {}
    busy = sa.select(job_table.c.agent, job_table.c.resources).where(job_table.c.state.in_(ACTIVE))
    for agent, resources in connection.execute(busy):
        taken.setdefault(agent, []).append(Resources.model_validate(resources))
    return [_told(row, taken.get(row["id"], [])) for row in rows]


def _told(row: Any, taken: list[Resources]) -> Agent:
    used = (
        Resources(
            cpus=sum(each.total_cpus for each in taken),
            gpus=sum(each.total_gpus for each in taken),
            memory=sum(each.total_memory or 0 for each in taken) or None,
        )
        if taken
        else None
    )
    same = {name: row[name] for name in ("id", "name", "host", "version", "slots", "load", "seen")}
    alive = time.time() - row["seen"] < queue.LEASE
    return Agent(**same, owner=row["person"], group=row["team"], used=used, jobs=len(taken), alive=alive)


def dismiss(change: Change, caller: Caller, agent: int) -> None:
    """Forget an agent that has no jobs.

    Raises:
        RefusedError: it has some.
    """
    row = change.execute(sa.select(agents).where(agents.c.id == agent)).one_or_none()
    if row is None or not (caller.admin or row.owner == caller.user):
        raise missing("agent", agent)
    if actions.active(change.connection, agent):
        raise RefusedError(409, f"agent {row.name} has jobs", do="cancel them, or wait")
    change.execute(agents.delete().where(agents.c.id == agent))
    record(change, caller, "dismiss", f"agent:{agent}", name=row.name)
