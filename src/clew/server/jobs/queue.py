"""Who gets what next: fair order, claims, and what becomes of a job whose agent tells or falls silent.

All of it happens in transactions of the one writer, so a job is claimed once.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from clew.client.job import ACTIVE, STOPPED, Held, Resources, Result, Slots, left
from clew.server.database.tables import agents, job_events, jobs, members, tokens, users
from clew.server.database.writer import Change

LEASE = 60.0
"""Seconds of silence after which an agent is taken to be gone."""
_PATIENCE = 600.0
"""Seconds after which a job that is first in line is waited for: nothing smaller overtakes it on that agent."""
_MOST = 2000
"""Jobs that are looked at for a claim."""
_SILENT = "silent"
"""Among the facts of a job whose agent was not heard of: should it come back, the job goes on."""
_ROW = (jobs.c.id, jobs.c.owner, jobs.c.kind, jobs.c.priority, jobs.c.resources, jobs.c.created, jobs.c.agent)


@dataclass(frozen=True)
class Waiting:
    """What counts of a job that waits."""

    id: int
    owner: int
    priority: int
    resources: Resources
    created: float


def chosen(
    waiting: Iterable[Waiting],
    slots: Slots,
    free: Slots,
    share: Mapping[int, int],
    room: Mapping[int, int],
    *,
    now: float,
) -> list[Waiting]:
    """The jobs to start in `free`: by priority, then who uses the fewest CPUs now (`share`), then age.

    Smaller ones overtake what does not fit now, until the first in line has waited for long. `room` is how many more
    jobs an owner may have running; who is not in it has no limit.
    """
    found, used, open_to = list[Waiting](), Counter(share), dict(room)
    for first in _in_turn((each for each in waiting if each.resources.fits(slots)), used):
        if free.cpus < 1:
            break
        if open_to.get(first.owner, 1) <= 0:
            continue
        if not first.resources.fits(free):
            if now - first.created > _PATIENCE:
                break
            continue
        found.append(first)
        free = left(free, [first.resources])
        used[first.owner] += first.resources.total_cpus
        if first.owner in open_to:
            open_to[first.owner] -= 1
    return found


def _in_turn(waiting: Iterable[Waiting], used: Counter[int]) -> Iterator[Waiting]:
    """By priority, share and age; the share of whose turn it is may grow before the next is asked for."""
    ordered = sorted(waiting, key=lambda each: (-each.priority, each.created, each.id))
    for _, same in itertools.groupby(ordered, key=lambda each: each.priority):
        lines = dict[int, deque[Waiting]]()
        for each in same:
            lines.setdefault(each.owner, deque()).append(each)
        heads = [(used[owner], line[0].created, line[0].id, owner) for owner, line in lines.items()]
        heapq.heapify(heads)
        while heads:
            *_, owner = heapq.heappop(heads)
            line = lines[owner]
            yield line.popleft()
            if line:
                heapq.heappush(heads, (used[owner], line[0].created, line[0].id, owner))


def claim(change: Change, agent: int, *, quota: int | None = None, now: float | None = None) -> list[int]:
    """Give an agent the jobs it has room for; their numbers. An agent that is not there gets none.

    `quota` is how many jobs those may have running whose own quota says nothing.
    """
    now = time.time() if now is None else now
    row = change.execute(sa.select(agents).where(agents.c.id == agent)).mappings().first()
    if row is None:
        return []
    slots = Slots.model_validate(row["slots"])
    active = change.execute(
        sa.select(jobs.c.owner, jobs.c.agent, jobs.c.resources).where(jobs.c.state.in_(ACTIVE))
    ).all()
    free = left(slots, [Resources.model_validate(each.resources) for each in active if each.agent == agent])
    if free.cpus < 1:  # every job needs one
        return []
    waiting = _trusted(change, row, now)
    picked = chosen(
        waiting,
        slots,
        free,
        _shares(active),
        _quotas(change, waiting, active, quota),
        now=now,
    )
    for each in picked:
        changes = {"state": "claimed", "agent": agent, "attempt": jobs.c.attempt + 1, "claimed": now, "updated": now}
        changes |= {"begun": None, "ended": None, "exit_code": None, "reason": ""}
        change.execute(jobs.update().where(jobs.c.id == each.id).values(changes))
        note(change, each.id, "claimed", f"by agent {row['name']}", agent=agent, now=now)
    return [each.id for each in picked]


def _trusted(change: Change, agent: sa.RowMapping, now: float) -> list[Waiting]:
    """Jobs that may go to an agent: its owner's, and those of the group it serves, while both owners are in it.

    A job that ran before goes back to where its files are, as long as that agent is alive.
    """
    first = sa.select(*_ROW).where(jobs.c.state == "waiting", _may(change, agent))
    rows = change.execute(first.order_by(jobs.c.priority.desc(), jobs.c.id).limit(_MOST)).all()
    others = {each.agent for each in rows if each.agent not in (None, agent["id"])}
    alive = {
        each
        for each, seen in change.execute(sa.select(agents.c.id, agents.c.seen).where(agents.c.id.in_(others)))
        if now - seen < LEASE
    }
    return [
        Waiting(each.id, each.owner, each.priority, Resources.model_validate(each.resources), each.created)
        for each in rows
        if each.agent in (None, agent["id"]) or (each.kind != "evaluate" and each.agent not in alive)
    ]


def _may(change: Change, agent: sa.RowMapping) -> sa.ColumnElement[bool]:
    """Whether an agent may have a job, as things are now."""
    mine, group = jobs.c.owner == agent["owner"], agent["group"]
    if group is not None and agent["owner"] in set(change.execute(_belonging(group)).scalars()):
        mine = mine | ((jobs.c.group == group) & jobs.c.owner.in_(_belonging(group)))
    able = jobs.c.owner.in_(sa.select(users.c.id).where(users.c.disabled.is_(False)))
    return sa.and_(mine, able)


def _belonging(group: int) -> sa.Select[tuple[int]]:
    """Those in a group now, and administrators, who are in all."""
    inside = sa.select(members.c.user).where(members.c.group == group)
    return sa.select(users.c.id).where(users.c.admin.is_(True) | users.c.id.in_(inside))


def _shares(active: Sequence[Any]) -> dict[int, int]:
    used: Counter[int] = Counter()
    for each in active:
        used[each.owner] += Resources.model_validate(each.resources).total_cpus
    return used


def _quotas(change: Change, waiting: Iterable[Waiting], active: Sequence[Any], default: int | None) -> dict[int, int]:
    """How many more jobs each owner may have running; who has no limit is left out."""
    owners = {each.owner for each in waiting}
    running = Counter(each.owner for each in active)
    own = change.execute(sa.select(users.c.id, users.c.quota_jobs).where(users.c.id.in_(owners)))
    limits = {user: default if limit is None else limit for user, limit in own}
    return {user: limit - running[user] for user, limit in limits.items() if limit is not None}


def compare(change: Change, agent: int, held: Sequence[Held], *, now: float) -> tuple[list[int], list[int]]:
    """Bring the books and what an agent says it holds together.

    Returns:
        Jobs to hand out again, as the answer that gave them never arrived, if it may still have them; and those that
        are no longer its own.
    """
    numbers = [each.job for each in held]
    named = ("id", "state", "attempt", "agent", "facts", "begun")
    mine = (jobs.c.agent == agent) & (jobs.c.state.in_(ACTIVE) | jobs.c.id.in_(numbers))
    found = change.execute(sa.select(*(jobs.c[name] for name in named)).where(mine)).mappings()
    rows = {each["id"]: each for each in found}
    kept, foreign = set[int](), list[int]()
    for each in held:
        row = rows.get(each.job)
        if row is None or row["attempt"] != each.attempt or row["state"] == "cancelled":
            foreign.append(each.job)
            continue
        kept.add(each.job)
        if row["state"] not in ACTIVE and _open(row):
            _running(change, row, row["begun"], now=now)
    missing = [row for number, row in rows.items() if number not in kept]
    for row in missing:
        if row["state"] == "running":
            _gone(change, row["id"], "its agent knows nothing of it any more", now=now)
    return _again(change, agent, [row["id"] for row in missing if row["state"] == "claimed"], now=now), foreign


def _again(change: Change, agent: int, claimed: list[int], *, now: float) -> list[int]:
    """Of jobs that an agent was given and has not got: those it may still have. The others wait for another agent."""
    if not claimed:
        return []
    row = change.execute(sa.select(agents).where(agents.c.id == agent)).mappings().one()
    trusted = set(change.execute(sa.select(jobs.c.id).where(jobs.c.id.in_(claimed), _may(change, row))).scalars())
    for job in claimed:
        if job not in trusted:
            told = f"agent {row['name']} may not run it any more"
            _settle(change, job, "waiting", told, {"agent": None, "attempts": jobs.c.attempts + 1}, now=now)
    return [job for job in claimed if job in trusted]


def to_cancel(change: Change, agent: int) -> list[int]:
    """Jobs of an agent that are to end."""
    wanted = sa.select(jobs.c.id).where(jobs.c.agent == agent, jobs.c.state.in_(ACTIVE), jobs.c.cancel.is_not(None))
    return list(change.execute(wanted).scalars())


def seen(change: Change, agent: int, *, load: Mapping[str, Any] | None = None, now: float) -> None:
    """An agent's sign of life."""
    values: dict[str, Any] = {"seen": now} if load is None else {"seen": now, "load": dict(load)}
    change.execute(agents.update().where(agents.c.id == agent).values(values))


def report(change: Change, agent: int, job: int, result: Result, *, now: float | None = None) -> bool:
    """What an agent tells of a job; told twice, it counts once. False: the job is not that agent's any more."""
    now = time.time() if now is None else now
    row = change.execute(sa.select(jobs).where(jobs.c.id == job)).mappings().first()
    if row is None or row["agent"] != agent or row["attempt"] != result.attempt:
        return False
    if not _open(row):
        return row["state"] != "waiting" or result.state != "running"  # told before
    if result.state == "queued":  # with its agent, and not begun
        _change(change, job, {"reason": result.reason}, now=now)
        return True
    if row["state"] != "running" and result.state != "lost":
        _running(change, row, row["begun"] or result.began or now, now=now)
    if result.state == "running":
        return True
    facts = {
        **(row["facts"] or {}),
        _SILENT: False,
        "memory": max(result.memory, (row["facts"] or {}).get("memory") or 0),
    }
    values = {"exit_code": result.code, "facts": facts, "begun": result.began or row["begun"]}
    if result.state == "lost":
        _change(change, job, values, now=now)
        _gone(change, job, result.reason, now=now)
    else:
        _end(change, row, result, values, now=now)
    return True


def _open(row: sa.RowMapping) -> bool:
    """Whether an attempt may still go on: it does, or only its agent was not heard of for a while."""
    silent = row["state"] in ("waiting", "lost") and (row["facts"] or {}).get(_SILENT)
    return row["state"] in ACTIVE or bool(silent)


def _running(change: Change, row: sa.RowMapping, began: float | None, *, now: float) -> None:
    facts = {**(row["facts"] or {}), _SILENT: False}
    values = {"state": "running", "begun": began or now, "ended": None, "reason": "", "facts": facts}
    _change(change, row["id"], values, now=now)
    told = f"attempt {row['attempt']}" if row["state"] == "claimed" else "its agent is back"
    note(change, row["id"], "running", told, agent=row["agent"], now=now)


def _end(change: Change, row: sa.RowMapping, result: Result, values: dict[str, Any], *, now: float) -> None:
    reason = result.reason
    if result.code == 0:
        state = "done"
    elif row["cancel"] is not None:
        state, reason = "cancelled", "cancelled while it ran"
    elif result.code == STOPPED:
        again = row["attempt"] < row["attempts"]
        state = "waiting" if again else "failed"
        reason = reason or "it stopped before its end"
        reason += "; it goes on when its turn comes" if again else f"; go on with: clew requeue {row['id']}"
    else:
        state = "failed"
    _settle(change, row["id"], state, reason, {**values, "ended": result.ended or now}, now=now)


def _gone(change: Change, job: int, why: str, *, now: float, silent: bool = False) -> None:
    """A job that ended without a word: lost, or waiting again where that was asked for.

    Where only its agent fell silent its token stays: it may run all the while.
    """
    row = change.execute(sa.select(jobs).where(jobs.c.id == job)).mappings().one()
    again = row["attempt"] < row["attempts"]
    state = "cancelled" if row["cancel"] is not None else "waiting" if again else "lost"
    facts = {**(row["facts"] or {}), _SILENT: silent and state != "cancelled"}
    _settle(change, job, state, why, {"ended": now, "facts": facts}, now=now, revoked=not facts[_SILENT])


def _settle(
    change: Change, job: int, state: str, reason: str, values: Mapping[str, Any], *, now: float, revoked: bool = True
) -> None:
    """An attempt is over, and its token void."""
    _change(change, job, {**values, "state": state, "reason": reason}, now=now)
    note(change, job, "requeued" if state == "waiting" else state, reason, now=now)
    if revoked:
        revoke(change, job, now=now)


def token_name(job: int) -> str:
    """What the tokens of a job are called."""
    return f"job {job}"


def revoke(change: Change, job: int, *, now: float) -> None:
    """Make the tokens of a job void."""
    live = (tokens.c.kind == "job") & (tokens.c.name == token_name(job)) & tokens.c.revoked.is_(None)
    change.execute(tokens.update().where(live).values(revoked=now))


def sweep(change: Change, *, since: float, now: float | None = None, lease: float = LEASE) -> list[int]:
    """Jobs of agents that fell silent are lost, or wait again where they asked for it; their numbers.

    `since` is when the server began to listen: nobody can have been heard before.
    """
    now = time.time() if now is None else now
    if now - since < lease:
        return []
    silent = sa.select(jobs.c.id, agents.c.name).join(agents, agents.c.id == jobs.c.agent)
    rows = change.execute(silent.where(jobs.c.state.in_(ACTIVE), agents.c.seen < now - lease)).all()
    for each in rows:
        _gone(change, each.id, f"its agent {each.name} fell silent", now=now, silent=True)
    return [each.id for each in rows]


def note(
    change: Change, job: int, kind: str, message: str, *, agent: int | None = None, now: float | None = None
) -> None:
    """Write down what happened to a job."""
    moment = time.time() if now is None else now
    values = {"job": job, "time": moment, "kind": kind, "message": message, "agent": agent}
    change.execute(job_events.insert().values(values))


def _change(change: Change, job: int, values: Mapping[str, Any], *, now: float) -> None:
    change.execute(jobs.update().where(jobs.c.id == job).values({**values, "updated": now}))
