"""The job of a study whose trials are jobs: how it is submitted, cancelled and requeued together with its trials.

No agent gets the job itself. It waits until the first of its trials starts and ends with the last one
(`trial_proposals.py`).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from clew.client.job import ACTIVE_STATES, FINAL_STATES, Submission
from clew.client.trial import NewStudy
from clew.core.config import Document, validate
from clew.errors import ConfigError
from clew.server.accounts.caller import Caller
from clew.server.database.tables import jobs, studies, trials
from clew.server.database.writer import Transaction
from clew.server.jobs import queue
from clew.server.jobs.topics import job_topic
from clew.server.problems import RequestError
from clew.server.studies.open_studies import check_study
from clew.server.studies.study_rows import EXTERNAL_FACT, TRIAL_JOBS_FACT, insert_study
from clew.tuning.config import TuneConfig

RESUMED_FACT = "resumed"
"""Key in the facts of a study's job: when it was requeued. Earlier failures do not end it again."""


def has_trial_jobs(row: Any) -> bool:
    """Return whether a row of `jobs` is the job of a study whose trials are jobs."""
    return row.kind == "tune" and row.study is not None


def check_submission(submission: Submission) -> None:
    """Check that the server can propose the trials of a study. Other jobs are not checked.

    Raises:
        RequestError: the section `tune` is not valid, or does not fit a study on a server.
    """
    if not submission.trials_as_jobs:
        return
    try:
        check_study(_tune(submission), _epochs(submission))
    except ConfigError as error:
        raise RequestError(422, str(error), where="spec.tune") from None


def add_study(
    transaction: Transaction, caller: Caller, job: int, submission: Submission, *, owner: int, group: int | None
) -> None:
    """Add the study of a job that was submitted with `trials_as_jobs`; it belongs to the job's owner and group."""
    new = NewStudy(name=submission.name, tune=_tune(submission), epochs=_epochs(submission))
    facts = {EXTERNAL_FACT: False, TRIAL_JOBS_FACT: True}
    number = insert_study(transaction, caller, new, job=job, facts=facts)
    transaction.execute(studies.update().where(studies.c.id == number).values({"owner": owner, "group": group}))
    transaction.execute(jobs.update().where(jobs.c.id == job).values(study=number, attempt=1))


def _tune(submission: Submission) -> TuneConfig:
    return validate(TuneConfig, Document(dict(submission.spec["tune"]), source="spec.tune"))


def _epochs(submission: Submission) -> int:
    train = submission.spec.get("train")
    epochs = train.get("epochs", 1) if isinstance(train, dict) else 1
    return epochs if isinstance(epochs, int) and epochs >= 1 else 1


def cancel_trials(transaction: Transaction, study: int, reason: str, *, now: float) -> None:
    """Cancel the jobs of a study's trials: at once if they wait, soon if they run."""
    of_study = (jobs.c.study == study) & (jobs.c.kind == "trial")
    waiting = transaction.execute(sa.select(jobs.c.id).where(of_study, jobs.c.state == "waiting")).scalars().all()
    values: dict[str, Any] = {"cancel": now, "updated": now}
    ended = {"state": "cancelled", "ended": now, "reason": reason}
    transaction.execute(jobs.update().where(jobs.c.id.in_(waiting)).values({**values, **ended}))
    for job in waiting:
        queue.revoke_job_tokens(transaction, job, now=now)  # a silent agent may still run it
        queue.add_job_event(transaction, job, "cancelled", reason, now=now)
    active = of_study & jobs.c.state.in_(ACTIVE_STATES) & jobs.c.cancel.is_(None)
    transaction.execute(jobs.update().where(active).values(values))
    transaction.notify(*map(job_topic, waiting))


def requeue_trials(transaction: Transaction, row: Any, *, now: float) -> None:
    """Put the jobs of trials without a result back into the queue, for a study that is requeued.

    Args:
        transaction: The open transaction.
        row: The row of the study's job.
        now: The time, in seconds since 1970.
    """
    unfinished = sa.select(trials.c.job).where(trials.c.study == row.study, trials.c.ended.is_(None))
    ended = jobs.c.id.in_(unfinished) & jobs.c.state.in_(FINAL_STATES)
    numbers = transaction.execute(sa.select(jobs.c.id).where(ended)).scalars().all()
    values = {"state": "waiting", "cancel": None, "ended": None, "reason": "", "updated": now}
    more = {"attempts": sa.case((jobs.c.attempts > jobs.c.attempt, jobs.c.attempts), else_=jobs.c.attempt + 1)}
    transaction.execute(jobs.update().where(jobs.c.id.in_(numbers)).values({**values, **more}))
    for job in numbers:
        queue.revoke_job_tokens(transaction, job, now=now)
        queue.add_job_event(transaction, job, "requeued", "with its study", now=now)
    facts = {**(row.facts or {}), RESUMED_FACT: now}
    transaction.execute(jobs.update().where(jobs.c.id == row.id).values(facts=facts))
