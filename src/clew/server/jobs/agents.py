"""Agents in the database: registration, polls, and the list that users see."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from clew.client.agent_messages import AgentInfo, AgentRegistration, Poll, PollAnswer
from clew.client.job import ACTIVE_STATES, Resources
from clew.server.accounts.audit import record_action
from clew.server.accounts.caller import Caller
from clew.server.database.tables import agents, groups, users
from clew.server.database.tables import jobs as job_table
from clew.server.database.writer import Transaction
from clew.server.jobs import queue
from clew.server.jobs.job_rows import active_jobs
from clew.server.jobs.orders import make_order
from clew.server.jobs.scheduling import claim_jobs, may_run
from clew.server.jobs.topics import JOBS_TOPIC, job_topic
from clew.server.problems import RequestError, not_found
from clew.server.service import Service


def register_agent(
    transaction: Transaction,
    caller: Caller,
    registration: AgentRegistration,
    *,
    timeout: float = queue.AGENT_TIMEOUT,
) -> int:
    """Register an agent and return its id. An agent of the caller with the same name and folder is the same agent.

    Raises:
        RequestError: another agent with this name is alive, or the caller is not in the group.
    """
    now, group = time.time(), caller.group_id(registration.group, transaction.connection)
    same_name = (agents.c.owner == caller.user) & (agents.c.name == registration.name)
    row = transaction.execute(sa.select(agents).where(same_name)).one_or_none()
    values: dict[str, Any] = {"group": group, "host": registration.host, "version": registration.version, "seen": now}
    values |= {"slots": registration.slots.model_dump(), "facts": {"uid": registration.uid}, "token": caller.token}
    if row is None:
        number = transaction.add(agents, **values, owner=caller.user, name=registration.name, created=now)
    else:
        if row.facts["uid"] != registration.uid and queue.is_alive(row.seen, now, timeout=timeout):
            error = f"another agent of yours is called {registration.name}"
            raise RequestError(409, error, where="name", hint="choose another --name")
        number = int(row.id)
        transaction.execute(agents.update().where(agents.c.id == number).values(values))
    record_action(transaction, caller, "agent", f"agent:{number}", name=registration.name)
    return number


def owned_agent(connection: sa.Connection, caller: Caller, agent: int) -> Any:
    """Return the row of an agent that belongs to the caller.

    Raises:
        RequestError: there is none (404).
    """
    row = connection.execute(sa.select(agents).where(agents.c.id == agent)).mappings().one_or_none()
    if row is None or row["owner"] != caller.user or caller.job is not None:
        raise not_found("agent", agent)
    return row


def answer_poll(
    transaction: Transaction, service: Service, caller: Caller, agent: int, poll: Poll, *, first: bool
) -> PollAnswer:
    """Return what an agent must do now.

    Args:
        transaction: The open transaction.
        service: The server.
        caller: The owner of the agent.
        agent: The agent.
        poll: What the agent sent.
        first: Whether `poll` is current. Later answers to the same poll must not compare its list of held jobs.
    """
    row, now = owned_agent(transaction.connection, caller, agent), time.time()
    load = None if poll.load is None else poll.load.model_dump()
    queue.record_contact(transaction, agent, load=load, now=now)
    undelivered, foreign = queue.reconcile(transaction, agent, poll.held, now=now) if first else ([], [])
    resent = _resendable_jobs(transaction, row, undelivered, now=now)
    limits = service.config.limits
    claimed = claim_jobs(transaction, agent, quota=limits.quota_jobs, now=now, timeout=limits.agent_seconds)
    orders = tuple(make_order(transaction, job) for job in (*resent, *claimed))
    if orders or foreign:
        transaction.after_commit.append(service.tokens.clear)
        transaction.notify(JOBS_TOPIC, *(job_topic(job) for job in (*resent, *claimed)))
    cancelled = queue.jobs_to_cancel(transaction, agent)
    return PollAnswer(orders=orders, cancel=tuple(cancelled), drop=tuple(foreign))


def _resendable_jobs(
    transaction: Transaction, agent: sa.RowMapping, undelivered: list[int], *, now: float
) -> list[int]:
    """Return the undelivered jobs that the agent may still run. The others wait for another agent."""
    if not undelivered:
        return []
    query = sa.select(job_table.c.id).where(job_table.c.id.in_(undelivered), may_run(transaction, agent))
    allowed = set(transaction.execute(query).scalars())
    for job in undelivered:
        if job not in allowed:
            queue.withdraw(transaction, job, agent["name"], now=now)
    return [job for job in undelivered if job in allowed]


def list_agents(connection: sa.Connection, caller: Caller, *, timeout: float = queue.AGENT_TIMEOUT) -> list[AgentInfo]:
    """Return the agents that the caller may see; `timeout` is in seconds."""
    joined = agents.join(users, users.c.id == agents.c.owner).outerjoin(groups, groups.c.id == agents.c.group)
    names = (users.c.name.label("owner_name"), groups.c.name.label("group_name"))
    query = sa.select(agents, *names).select_from(joined)
    rows = connection.execute(query.where(caller.visible(agents)).order_by(agents.c.id)).mappings().all()
    by_agent: dict[int, list[Resources]] = {}
    active = sa.select(job_table.c.agent, job_table.c.resources).where(job_table.c.state.in_(ACTIVE_STATES))
    for agent, resources in connection.execute(active):
        by_agent.setdefault(agent, []).append(Resources.model_validate(resources))
    return [_agent_info(row, by_agent.get(row["id"], []), timeout) for row in rows]


def _agent_info(row: Any, resources: list[Resources], timeout: float) -> AgentInfo:
    used = None
    if resources:
        used = Resources(
            cpus=sum(each.total_cpus for each in resources),
            gpus=sum(each.total_gpus for each in resources),
            memory=sum(each.total_memory or 0 for each in resources) or None,
        )
    same = {name: row[name] for name in ("id", "name", "host", "version", "slots", "load", "seen")}
    names = {"owner": row["owner_name"], "group": row["group_name"]}
    alive = queue.is_alive(row["seen"], timeout=timeout)
    return AgentInfo(**same, **names, used=used, jobs=len(resources), alive=alive)


def delete_agent(transaction: Transaction, caller: Caller, agent: int) -> None:
    """Delete an agent that has no jobs.

    Raises:
        RequestError: it has jobs.
    """
    row = transaction.execute(sa.select(agents).where(agents.c.id == agent)).one_or_none()
    if row is None or not (caller.admin or row.owner == caller.user):
        raise not_found("agent", agent)
    if active_jobs(transaction.connection, agent):
        raise RequestError(409, f"agent {row.name} has jobs", hint="cancel them, or wait")
    transaction.execute(agents.delete().where(agents.c.id == agent))
    record_action(transaction, caller, "delete agent", f"agent:{agent}", name=row.name)
