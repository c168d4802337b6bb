"""Scheduling: which waiting jobs an agent gets next.

The order is by priority, then by the CPUs that the owner uses now, then by age. All of it happens in transactions of
the one writer, so a job is claimed once.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from clew.client.job import ACTIVE_STATES, Resources, Slots, remaining_slots
from clew.server.database.tables import agents, jobs, members, users
from clew.server.database.writer import Transaction
from clew.server.jobs.queue import AGENT_TIMEOUT, add_job_event, is_alive

_RESERVE_AFTER_SECONDS = 600.0
"""A job that is first in line and has waited this long is not overtaken by smaller jobs any more."""
_MAX_CANDIDATES = 2000
"""Waiting jobs that are considered for one agent."""
_CANDIDATE_COLUMNS = ("id", "owner", "kind", "priority", "resources", "created", "agent")


@dataclass(frozen=True)
class WaitingJob:
    """The properties of a waiting job that decide when it starts."""

    id: int
    owner: int
    priority: int
    resources: Resources
    created: float


@dataclass(frozen=True)
class Usage:
    """How much the owners of jobs use now."""

    cpus: Mapping[int, int] = field(default_factory=dict)
    """CPUs in use, by owner."""
    remaining_jobs: Mapping[int, int] = field(default_factory=dict)
    """Jobs that an owner may still start; an owner that is not in it has no limit."""


def choose_jobs(
    waiting: Iterable[WaitingJob], slots: Slots, free: Slots, usage: Usage, *, now: float
) -> list[WaitingJob]:
    """Choose the jobs to start on an agent.

    Smaller jobs overtake a job that does not fit now, until the first in line has waited for ten minutes.

    Args:
        waiting: The candidates.
        slots: All resources of the agent.
        free: Its free resources.
        usage: What owners use now.
        now: The time, in seconds since 1970.
    """
    chosen, cpus, remaining = list[WaitingJob](), Counter(usage.cpus), dict(usage.remaining_jobs)
    for job in _fair_order((job for job in waiting if job.resources.fits(slots)), cpus):
        if free.cpus < 1:
            break
        if remaining.get(job.owner, 1) <= 0:
            continue
        if not job.resources.fits(free):
            if now - job.created > _RESERVE_AFTER_SECONDS:
                break
            continue
        chosen.append(job)
        free = remaining_slots(free, [job.resources])
        cpus[job.owner] += job.resources.total_cpus
        if job.owner in remaining:
            remaining[job.owner] -= 1
    return chosen


def _fair_order(waiting: Iterable[WaitingJob], cpus: Counter[int]) -> Iterator[WaitingJob]:
    """Yield jobs by priority, CPUs of the owner and age. The caller may increase `cpus` between two jobs."""
    ordered = sorted(waiting, key=lambda job: (-job.priority, job.created, job.id))
    for _, same_priority in itertools.groupby(ordered, key=lambda job: job.priority):
        queues = dict[int, deque[WaitingJob]]()
        for job in same_priority:
            queues.setdefault(job.owner, deque()).append(job)
        heads = [(cpus[owner], line[0].created, line[0].id, owner) for owner, line in queues.items()]
        heapq.heapify(heads)
        while heads:
            *_, owner = heapq.heappop(heads)
            line = queues[owner]
            yield line.popleft()
            if line:
                heapq.heappush(heads, (cpus[owner], line[0].created, line[0].id, owner))


def claim_jobs(
    transaction: Transaction,
    agent: int,
    *,
    quota: int | None = None,
    now: float | None = None,
    timeout: float = AGENT_TIMEOUT,
) -> list[int]:
    """Assign waiting jobs to an agent, as many as fit.

    Args:
        transaction: The open transaction.
        agent: The agent; one that does not exist gets no jobs.
        quota: Running jobs per user, for users without a quota of their own.
        now: The time, in seconds since 1970; default: the clock.
        timeout: Seconds without contact after which an agent counts as gone.

    Returns:
        The ids of the jobs.
    """
    now = time.time() if now is None else now
    row = transaction.execute(sa.select(agents).where(agents.c.id == agent)).mappings().first()
    if row is None:
        return []
    slots = Slots.model_validate(row["slots"])
    active = transaction.execute(
        sa.select(jobs.c.owner, jobs.c.agent, jobs.c.resources).where(
            jobs.c.state.in_(ACTIVE_STATES), jobs.c.agent.is_not(None)
        )
    ).all()
    used = [Resources.model_validate(each.resources) for each in active if each.agent == agent]
    free = remaining_slots(slots, used)
    if free.cpus < 1:  # every job needs one
        return []
    waiting = _candidates(transaction, row, now, timeout)
    usage = Usage(_cpus_by_owner(active), _remaining_quotas(transaction, waiting, active, quota))
    chosen = choose_jobs(waiting, slots, free, usage, now=now)
    for job in chosen:
        values = {"state": "claimed", "agent": agent, "attempt": jobs.c.attempt + 1, "claimed": now, "updated": now}
        values |= {"begun": None, "ended": None, "exit_code": None, "reason": ""}
        transaction.execute(jobs.update().where(jobs.c.id == job.id).values(values))
        add_job_event(transaction, job.id, "claimed", f"by agent {row['name']}", agent=agent, now=now)
    return [job.id for job in chosen]


def _candidates(transaction: Transaction, agent: sa.RowMapping, now: float, timeout: float) -> list[WaitingJob]:
    """Return the waiting jobs that an agent may run.

    A job that ran before returns to the agent that has its files, as long as that agent is alive.
    """
    columns = [jobs.c[name] for name in _CANDIDATE_COLUMNS]
    for_agents = jobs.c.study.is_(None) | (jobs.c.kind == "trial")  # a study whose trials are jobs is none itself
    query = sa.select(*columns).where(jobs.c.state == "waiting", for_agents, may_run(transaction, agent))
    rows = transaction.execute(query.order_by(jobs.c.priority.desc(), jobs.c.id).limit(_MAX_CANDIDATES)).all()
    other_agents = {row.agent for row in rows if row.agent not in (None, agent["id"])}
    contacts = transaction.execute(sa.select(agents.c.id, agents.c.seen).where(agents.c.id.in_(other_agents)))
    alive = {number for number, last_contact in contacts if is_alive(last_contact, now, timeout=timeout)}
    return [
        WaitingJob(row.id, row.owner, row.priority, Resources.model_validate(row.resources), row.created)
        for row in rows
        if row.agent in (None, agent["id"]) or (row.kind != "evaluate" and row.agent not in alive)
    ]


def may_run(transaction: Transaction, agent: sa.RowMapping) -> sa.ColumnElement[bool]:
    """Return the condition on jobs that an agent may run.

    An agent runs jobs of its owner. If it serves a group, it also runs jobs of this group, while both owners are
    members.
    """
    allowed, group = jobs.c.owner == agent["owner"], agent["group"]
    if group is not None and agent["owner"] in set(transaction.execute(_group_users(group)).scalars()):
        allowed = allowed | ((jobs.c.group == group) & jobs.c.owner.in_(_group_users(group)))
    enabled = jobs.c.owner.in_(sa.select(users.c.id).where(users.c.disabled.is_(False)))
    return sa.and_(allowed, enabled)


def _group_users(group: int) -> sa.Select[tuple[int]]:
    """Select the members of a group, and administrators, who belong to all groups."""
    in_group = sa.select(members.c.user).where(members.c.group == group)
    return sa.select(users.c.id).where(users.c.admin.is_(True) | users.c.id.in_(in_group))


def _cpus_by_owner(active: Sequence[Any]) -> dict[int, int]:
    cpus: Counter[int] = Counter()
    for row in active:
        cpus[row.owner] += Resources.model_validate(row.resources).total_cpus
    return cpus


def _remaining_quotas(
    transaction: Transaction, waiting: Iterable[WaitingJob], active: Sequence[Any], default: int | None
) -> dict[int, int]:
    """Return how many more jobs each owner may start; owners without a limit are left out."""
    owners = {job.owner for job in waiting}
    running = Counter(row.owner for row in active)
    quotas = transaction.execute(sa.select(users.c.id, users.c.quota_jobs).where(users.c.id.in_(owners)))
    limits = {user: default if limit is None else limit for user, limit in quotas}
    return {user: limit - running[user] for user, limit in limits.items() if limit is not None}
