"""What users do with jobs: submit, cancel, requeue and retry."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from clew.client.job import FINAL_STATES, Submission
from clew.server.accounts.audit import record_action
from clew.server.accounts.caller import Caller
from clew.server.database.tables import jobs
from clew.server.database.writer import Transaction
from clew.server.jobs import queue
from clew.server.jobs.job_rows import visible_job
from clew.server.jobs.topics import JOBS_TOPIC, QUEUE_TOPIC, job_topic
from clew.server.problems import RequestError
from clew.server.studies import study_jobs

_SUBMITTED_COLUMNS = {"name", "kind", "spec", "files", "arguments", "priority", "dataset"}


def submit(transaction: Transaction, caller: Caller, submission: Submission) -> int:
    """Add a job of the caller to the queue.

    Args:
        transaction: The open transaction.
        caller: The user who submits.
        submission: The job. The same `uid` again is the same job.

    Returns:
        The id of the job.

    Raises:
        RequestError: the caller is not in the group, or there is no job to evaluate.
    """
    group = caller.group_id(submission.group, transaction.connection)
    return _add_job(transaction, caller, submission, _Origin(caller.user, group))


@dataclass(frozen=True)
class _Origin:
    """Where a new job comes from."""

    owner: int
    """The user whose code it is, and whose agents and accounts run it."""
    group: int | None
    retry_of: int | None = None
    """The job that it repeats."""


def _add_job(transaction: Transaction, caller: Caller, submission: Submission, origin: _Origin) -> int:
    now, uid = time.time(), submission.uid or secrets.token_hex(8)
    existing = transaction.scalar(sa.select(jobs.c.id).where(jobs.c.owner == origin.owner, jobs.c.handle == uid))
    if existing is not None:
        return int(existing)
    target = submission.target_job
    agent = None if target is None else _evaluated_job(transaction, caller, target, origin.owner).agent
    row = submission.model_dump(include=_SUBMITTED_COLUMNS, mode="json")
    row |= {"owner": origin.owner, "group": origin.group, "resources": submission.resources.model_dump()}
    row["facts"] = {"of": target, "retry_of": origin.retry_of, "memory": None, "store": submission.store}
    row |= {"handle": uid, "agent": agent}
    row |= {"state": "waiting", "attempt": 0, "attempts": submission.requeue + 1, "reason": ""}
    job = transaction.add(jobs, **row, created=now, updated=now)
    if submission.trials_as_jobs:
        study_jobs.add_study(transaction, caller, job, submission, owner=origin.owner, group=origin.group)
    queue.add_job_event(transaction, job, "submitted", f"by {caller.name}", now=now)
    record_action(transaction, caller, "submit", job_topic(job), name=submission.name, kind=submission.kind)
    transaction.notify(QUEUE_TOPIC, JOBS_TOPIC, job_topic(job))
    return job


def _evaluated_job(transaction: Transaction, caller: Caller, job: int, owner: int) -> Any:
    """Return the row of a training job of the owner that an agent has run."""
    row = visible_job(transaction.connection, caller, job)
    if row.owner != owner or row.kind != "train" or row.agent is None:
        hint = "name a training job of your own that an agent has run"
        raise RequestError(409, f"the run of job {job} cannot be evaluated", where="target_job", hint=hint)
    return row


def _check_no_trial(row: Any, verb: str) -> None:
    if row.kind == "trial":
        study = row.facts["of"]
        hint = f"{verb} the study instead: clew {verb} {study}"
        raise RequestError(409, f"job {row.id} is a trial of the study of job {study}", hint=hint)


def cancel(transaction: Transaction, caller: Caller, job: int) -> None:
    """Cancel a job: at once if it waits, soon if it runs.

    Raises:
        RequestError: the job has ended.
    """
    row, now = visible_job(transaction.connection, caller, job), time.time()
    if row.state in FINAL_STATES:
        raise RequestError(409, f"job {job} has ended: {row.state}", hint="there is nothing to cancel")
    values = {"cancel": row.cancel or now, "updated": now}
    if row.state == "waiting":
        values |= {"state": "cancelled", "ended": now, "reason": "cancelled before it started"}
        queue.revoke_job_tokens(transaction, job, now=now)  # a silent agent may still run it
    if study_jobs.has_trial_jobs(row):
        study_jobs.cancel_trials(transaction, row.study, "cancelled with its study", now=now)
    transaction.execute(jobs.update().where(jobs.c.id == job).values(values))
    kind = "cancelled" if row.state == "waiting" else "cancel"
    queue.add_job_event(transaction, job, kind, f"by {caller.name}", now=now)
    record_action(transaction, caller, "cancel", job_topic(job))
    transaction.notify(QUEUE_TOPIC, JOBS_TOPIC, job_topic(job))


def requeue(transaction: Transaction, caller: Caller, job: int) -> None:
    """Put an ended job back into the queue. It resumes where it stopped, on the agent that has its files.

    Raises:
        RequestError: the job waits, runs or is done.
    """
    row, now = visible_job(transaction.connection, caller, job), time.time()
    _check_no_trial(row, "requeue")
    if row.state not in FINAL_STATES:
        raise RequestError(409, f"job {job} is {row.state}", hint="wait until it has ended, or cancel it")
    if row.state == "done":
        raise RequestError(409, f"job {job} is done", hint=f"start a new one with: clew retry {job}")
    attempts = max(row.attempts, row.attempt + 1)
    values = {"state": "waiting", "cancel": None, "ended": None, "attempts": attempts, "reason": "", "updated": now}
    transaction.execute(jobs.update().where(jobs.c.id == job).values(values))
    if study_jobs.has_trial_jobs(row):
        study_jobs.requeue_trials(transaction, row, now=now)
    queue.revoke_job_tokens(transaction, job, now=now)
    queue.add_job_event(transaction, job, "requeued", f"by {caller.name}", now=now)
    record_action(transaction, caller, "requeue", job_topic(job))
    transaction.notify(QUEUE_TOPIC, JOBS_TOPIC, job_topic(job))


def retry(transaction: Transaction, caller: Caller, job: int) -> int:
    """Submit a copy of a job, which starts from the beginning, and return its id.

    The copy belongs to the owner of the job, whoever asks for it: its code is the owner's, so it must not run with
    the agents and the account of another user.
    """
    row = visible_job(transaction.connection, caller, job)
    _check_no_trial(row, "retry")
    submission = Submission.model_validate(
        {
            **{name: getattr(row, name) for name in ("kind", "name", "spec", "arguments", "resources", "priority")},
            "files": row.files or {},
            "target_job": row.facts["of"],
            "dataset": None if row.kind == "prepare" else row.dataset,
            "store": row.facts.get("store"),
            "requeue": row.attempts - 1,
            "trials_as_jobs": study_jobs.has_trial_jobs(row),
        }
    )
    return _add_job(transaction, caller, submission, _Origin(row.owner, row.group, retry_of=job))
