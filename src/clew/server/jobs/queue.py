"""The state of jobs in the queue: results that agents report, lost jobs, cancelled jobs and job events.

`scheduling.py` decides which agent gets which job; here the states of assigned jobs change. All of it happens in
transactions of the one writer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from clew.client.job import ACTIVE_STATES, RESUMABLE_EXIT_CODE, HeldJob, JobResult
from clew.server.config import ServerLimits
from clew.server.database.tables import agents, job_events, jobs, tokens, trials
from clew.server.database.writer import Transaction

AGENT_TIMEOUT = ServerLimits().agent_seconds
"""Seconds without contact after which an agent counts as gone, if the server's settings do not change it."""
_SILENT_FACT = "silent"
"""Key in the facts of a job whose agent is silent. If the agent returns, the job continues."""
_HELD_COLUMNS = ("id", "state", "attempt", "agent", "facts", "begun")


def is_alive(last_contact: float, now: float | None = None, *, timeout: float = AGENT_TIMEOUT) -> bool:
    """Return whether an agent with this last contact (seconds since 1970) counts as alive."""
    return (time.time() if now is None else now) - last_contact < timeout


def reconcile(
    transaction: Transaction, agent: int, held: Sequence[HeldJob], *, now: float
) -> tuple[list[int], list[int]]:
    """Compare the database with the jobs that an agent says it holds.

    Args:
        transaction: The open transaction.
        agent: The agent.
        held: All jobs that it holds.
        now: The time, in seconds since 1970.

    Returns:
        Jobs that were assigned to the agent but never arrived there, and jobs that do not belong to it any more.
    """
    held_ids = [each.job for each in held]
    of_agent = (jobs.c.agent == agent) & (jobs.c.state.in_(ACTIVE_STATES) | jobs.c.id.in_(held_ids))
    query = sa.select(*(jobs.c[name] for name in _HELD_COLUMNS)).where(of_agent)
    rows = {row["id"]: row for row in transaction.execute(query).mappings()}
    confirmed, foreign = set[int](), list[int]()
    for each in held:
        row = rows.get(each.job)
        if row is None or row["attempt"] != each.attempt or row["state"] == "cancelled":
            foreign.append(each.job)
            continue
        confirmed.add(each.job)
        if row["state"] not in ACTIVE_STATES and _may_continue(row):
            _set_running(transaction, row, row["begun"], now=now)
    missing = [row for number, row in rows.items() if number not in confirmed]
    for row in missing:
        if row["state"] == "running":
            _set_lost(transaction, row["id"], "its agent does not know the job any more", now=now)
    return [row["id"] for row in missing if row["state"] == "claimed"], foreign


def withdraw(transaction: Transaction, job: int, agent_name: str, *, now: float) -> None:
    """Take a claimed job from an agent that may not run it any more; it waits for another agent."""
    reason = f"agent {agent_name} may not run it any more"
    values = {"agent": None, "attempts": jobs.c.attempts + 1}
    _end_attempt(transaction, job, "waiting", reason, values, now=now)
    revoke_job_tokens(transaction, job, now=now)


def jobs_to_cancel(transaction: Transaction, agent: int) -> list[int]:
    """Return the jobs of an agent that a user cancelled."""
    query = sa.select(jobs.c.id).where(
        jobs.c.agent == agent, jobs.c.state.in_(ACTIVE_STATES), jobs.c.cancel.is_not(None)
    )
    return list(transaction.execute(query).scalars())


def record_contact(transaction: Transaction, agent: int, *, load: Mapping[str, Any] | None = None, now: float) -> None:
    """Record that an agent made contact, and how busy its machine is."""
    values: dict[str, Any] = {"seen": now} if load is None else {"seen": now, "load": dict(load)}
    transaction.execute(agents.update().where(agents.c.id == agent).values(values))


def record_result(
    transaction: Transaction, agent: int, job: int, result: JobResult, *, now: float | None = None
) -> bool:
    """Record the state of a job that an agent reports. The same report counts once.

    Returns:
        False if the job does not belong to the agent any more.
    """
    now = time.time() if now is None else now
    row = transaction.execute(sa.select(jobs).where(jobs.c.id == job)).mappings().first()
    if row is None or row["agent"] != agent or row["attempt"] != result.attempt:
        return False
    if not _may_continue(row):
        return row["state"] != "waiting" or result.state != "running"  # reported before
    if result.state == "queued":  # the agent has it, and it has not started
        _update_job(transaction, job, {"reason": result.reason}, now=now)
        return True
    if row["state"] != "running" and result.state != "lost":
        _set_running(transaction, row, row["begun"] or result.began or now, now=now)
    if result.state == "running":
        return True
    facts = row["facts"] or {}
    facts = {**facts, _SILENT_FACT: False, "memory": max(result.memory, facts.get("memory") or 0)}
    facts |= {"stored": result.stored} if result.stored else {}
    values = {"exit_code": result.code, "facts": facts, "begun": result.began or row["begun"]}
    if result.state == "lost":
        _update_job(transaction, job, values, now=now)
        _set_lost(transaction, job, result.reason, now=now)
    else:
        _set_ended(transaction, row, result, values, now=now)
    return True


def _may_continue(row: sa.RowMapping) -> bool:
    """Return whether an attempt may continue: it is active, or only its agent was silent for a while."""
    silent = row["state"] in ("waiting", "lost") and (row["facts"] or {}).get(_SILENT_FACT)
    return row["state"] in ACTIVE_STATES or bool(silent)


def _set_running(transaction: Transaction, row: sa.RowMapping, started: float | None, *, now: float) -> None:
    facts = {**(row["facts"] or {}), _SILENT_FACT: False}
    values = {"state": "running", "begun": started or now, "ended": None, "reason": "", "facts": facts}
    _update_job(transaction, row["id"], values, now=now)
    message = f"attempt {row['attempt']}" if row["state"] == "claimed" else "its agent is back"
    add_job_event(transaction, row["id"], "running", message, agent=row["agent"], now=now)


def _set_ended(
    transaction: Transaction, row: sa.RowMapping, result: JobResult, values: dict[str, Any], *, now: float
) -> None:
    reason = result.reason
    if result.code == 0:
        state = "done"
    elif row["cancel"] is not None:
        state, reason = "cancelled", "cancelled while it ran"
    elif result.code == RESUMABLE_EXIT_CODE:
        requeued = row["attempt"] < row["attempts"]
        state = "waiting" if requeued else "failed"
        reason = reason or "it stopped before its end"
        reason += "; it resumes when its turn comes" if requeued else f"; resume with: clew requeue {row['id']}"
    else:
        state = "failed"
    _end_attempt(transaction, row["id"], state, reason, {**values, "ended": result.ended or now}, now=now)
    revoke_job_tokens(transaction, row["id"], now=now)


def _set_lost(transaction: Transaction, job: int, reason: str, *, now: float, silent: bool = False) -> None:
    """End an attempt of which no result came: the job is lost, or waits again if it may be requeued.

    Args:
        transaction: The open transaction.
        job: The job.
        reason: Why it counts as lost.
        now: The time, in seconds since 1970.
        silent: Only its agent is silent. The token stays valid, because the job may still run.
    """
    row = transaction.execute(sa.select(jobs).where(jobs.c.id == job)).mappings().one()
    requeued = row["attempt"] < row["attempts"]
    state = "cancelled" if row["cancel"] is not None else "waiting" if requeued else "lost"
    if row["kind"] == "trial" and _has_all_results(transaction, job):
        state, reason = "done", f"{reason} after the end of its trials"
    facts = {**(row["facts"] or {}), _SILENT_FACT: silent and state != "cancelled"}
    _end_attempt(transaction, job, state, reason, {"ended": now, "facts": facts}, now=now)
    if not facts[_SILENT_FACT]:
        revoke_job_tokens(transaction, job, now=now)


def end_if_silent(transaction: Transaction, job: int, *, now: float) -> None:
    """End a trial's job whose agent is silent, if all its results have arrived, so that no other agent repeats it."""
    row = transaction.execute(sa.select(jobs).where(jobs.c.id == job)).mappings().one()
    if row["state"] in ("waiting", "lost") and _may_continue(row) and _has_all_results(transaction, job):
        _end_attempt(transaction, job, "done", "its agent was silent at the end of its trials", {"ended": now}, now=now)


def _has_all_results(transaction: Transaction, job: int) -> bool:
    """Return whether all trials of a job have ended."""
    missing = sa.select(trials.c.id).where(trials.c.job == job, trials.c.ended.is_(None)).limit(1)
    return transaction.execute(missing).first() is None


def _end_attempt(
    transaction: Transaction, job: int, state: str, reason: str, values: Mapping[str, Any], *, now: float
) -> None:
    _update_job(transaction, job, {**values, "state": state, "reason": reason}, now=now)
    add_job_event(transaction, job, "requeued" if state == "waiting" else state, reason, now=now)


def token_name(job: int) -> str:
    """Return the name of a job's tokens."""
    return f"job {job}"


def revoke_job_tokens(transaction: Transaction, job: int, *, now: float) -> None:
    """Revoke the tokens of a job."""
    valid = (tokens.c.kind == "job") & (tokens.c.name == token_name(job)) & tokens.c.revoked.is_(None)
    transaction.execute(tokens.update().where(valid).values(revoked=now))


def expire_silent_agents(
    transaction: Transaction, *, since: float, now: float | None = None, timeout: float = AGENT_TIMEOUT
) -> list[int]:
    """End the jobs of agents that made no contact: they are lost, or wait again if they may be requeued.

    Args:
        transaction: The open transaction.
        since: When the server started; no contact can be older.
        now: The time, in seconds since 1970; default: the clock.
        timeout: Seconds without contact.

    Returns:
        The ids of the jobs.
    """
    now = time.time() if now is None else now
    if now - since < timeout:
        return []
    query = sa.select(jobs.c.id, agents.c.name).join(agents, agents.c.id == jobs.c.agent)
    rows = transaction.execute(query.where(jobs.c.state.in_(ACTIVE_STATES), agents.c.seen < now - timeout)).all()
    for row in rows:
        _set_lost(transaction, row.id, f"its agent {row.name} fell silent", now=now, silent=True)
    return [row.id for row in rows]


def add_job_event(
    transaction: Transaction, job: int, kind: str, message: str, *, agent: int | None = None, now: float | None = None
) -> None:
    """Add an event to the history of a job."""
    moment = time.time() if now is None else now
    values = {"job": job, "time": moment, "kind": kind, "message": message, "agent": agent}
    transaction.execute(job_events.insert().values(values))


def _update_job(transaction: Transaction, job: int, values: Mapping[str, Any], *, now: float) -> None:
    transaction.execute(jobs.update().where(jobs.c.id == job).values({**values, "updated": now}))
