"""Proposes the trials of studies whose trials are jobs, and ends these studies.

The server holds the sampler. It proposes a trial when an agent that may run it has free resources, so that the
proposal uses every result so far. A trial's job is an ordinary job: agents claim it, and it returns to the queue when
its agent is lost. A trial whose job ended without a result has failed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from clew.client.job import ACTIVE_STATES, FINAL_STATES, Resources, Slots, remaining_slots
from clew.client.trial import Trial
from clew.errors import ClewError
from clew.server.database.tables import agents, jobs, studies, trials
from clew.server.database.writer import Transaction
from clew.server.events.notifications import wait_for_notification
from clew.server.jobs import queue
from clew.server.jobs.topics import JOBS_TOPIC, QUEUE_TOPIC, job_topic
from clew.server.service import Service
from clew.server.studies.open_studies import OpenStudies
from clew.server.studies.study_jobs import RESUMED_FACT, cancel_trials
from clew.server.studies.study_rows import STUDIES_TOPIC, save_trial, touch_study
from clew.tuning.config import TuneConfig
from clew.tuning.folder import run_name

if TYPE_CHECKING:
    from clew.tuning.proposed_trial import ProposedTrial

_LOG = logging.getLogger("clew.server")
_CHECK_SECONDS = 2.0
"""Seconds between two checks without a notification: agents may have appeared."""
_PACK_SIZE, _PACK_SIZE_GPU = 16, 256
"""Trials per job for `packed: auto`."""
_MAX_NEW_JOBS = 50
"""Jobs that one study adds at a time. An agent may offer any number of cores."""
_CONFIG_EXIT_CODE = 2
"""Exit code of a job whose settings or data are not valid, which all trials share."""
_LONGEST_NAME = 60


async def watch_studies(service: Service, open_studies: OpenStudies) -> None:
    """Propose trials and end studies whenever something happened."""
    with service.notifications.subscribe(QUEUE_TOPIC, STUDIES_TOPIC) as wakeup:
        while not service.notifications.stopping:
            await asyncio.to_thread(advance_studies, service, open_studies)
            await wait_for_notification(wakeup, _CHECK_SECONDS)


def advance_studies(service: Service, open_studies: OpenStudies) -> None:
    """Advance every study whose job has not ended."""
    query = sa.select(jobs).where(jobs.c.kind == "tune", jobs.c.study.is_not(None), jobs.c.state.not_in(FINAL_STATES))
    with service.database.read() as connection:
        rows = connection.execute(query.order_by(jobs.c.id)).all()
    for row in rows:
        try:
            StudyProgress(service, open_studies, row).advance()
        except ClewError as error:
            _LOG.warning("study %s: %s", row.study, error)


@dataclass(frozen=True)
class _OpenTrial:
    """A trial without a result, and its job."""

    number: int
    job: int
    handle: str
    state: str
    reason: str


class StudyProgress:
    """One study at one moment: what it has and what it needs next."""

    def __init__(self, service: Service, open_studies: OpenStudies, job: Any) -> None:
        """Read the study.

        Args:
            service: The server.
            open_studies: The open studies of the server.
            job: The row of the study's job.
        """
        from clew.tuning.space import planned_trials

        self._service, self._studies, self._job = service, open_studies, job
        with service.database.read() as connection:
            self._study = connection.execute(sa.select(studies).where(studies.c.id == job.study)).one()
            self._open = _open_trials(connection, job.study)
            self._jobs = _unfinished_jobs(connection, job.study)
            self._free = _free_places(connection, job, service.config.limits.agent_seconds)
        self._config = TuneConfig.model_validate(self._study.spec["tune"])
        self._planned = planned_trials(self._config)

    def advance(self) -> None:
        """Record trials that failed, end the study if it is over, and propose trials for free resources."""
        if self._job.cancel is not None:
            if not any(state in ACTIVE_STATES for state in self._jobs.values()):
                reason = f"cancelled; resume with: clew requeue {self._job.id}"
                self._service.write(lambda transaction: self._end(transaction, "cancelled", reason))
            return
        ended = [trial for trial in self._open if trial.state in FINAL_STATES]
        for trial in ended:
            self._fail_trial(trial)
        self._open = [trial for trial in self._open if trial not in ended]
        if not self._service.write(self._end_or_start):
            for _ in range(_MAX_NEW_JOBS):  # the next look continues: other studies must not wait for this one
                if self._wanted_jobs() <= 0 or not self._propose():
                    break

    def _fail_trial(self, trial: _OpenTrial) -> None:
        reason = trial.reason or f"its job {trial.job} is {trial.state} without a result"
        with self._studies.opened(self._study) as study:
            accepted = study.tell(trial.number, state="failed", reason=reason)
            self._studies.save_result(self._study, study, trial.number, new=accepted)

    def _end_or_start(self, transaction: Transaction) -> bool:
        """End the study if it is over, or note that it has started. Return whether it has ended.

        The writer's thread must not open the study: a request that has it open may wait for the writer.
        """
        counts = self._counts(transaction)
        ended = sum(count for state, count in counts.items() if state != "running")
        failure = self._failure(transaction, counts)
        if failure:
            self._fail(transaction, failure)
        elif ended >= self._planned:
            if not _unfinished_jobs(transaction.connection, self._study.id):  # they send the rest of their runs
                self._end(transaction, "done", "")
        elif self._job.state == "waiting" and (ended or any(state in ACTIVE_STATES for state in self._jobs.values())):
            now = time.time()
            values = {"state": "running", "begun": self._job.begun or now, "updated": now}
            transaction.execute(jobs.update().where(jobs.c.id == self._job.id).values(values))
            queue.add_job_event(transaction, self._job.id, "running", "its first trial has started", now=now)
            transaction.notify(JOBS_TOPIC, job_topic(self._job.id))
        return bool(failure) or ended >= self._planned

    def _counts(self, transaction: Transaction) -> dict[str, int]:
        query = sa.select(trials.c.state, sa.func.count()).where(trials.c.study == self._study.id)
        return {row[0]: row[1] for row in transaction.execute(query.group_by(trials.c.state))}

    def _failure(self, transaction: Transaction, counts: dict[str, int]) -> str:
        """Return why the study fails: for a reason that all trials share, or after too many failures in a row."""
        since = (self._job.facts or {}).get(RESUMED_FACT, 0.0)
        if not counts.get("complete"):
            trial_jobs = sa.select(jobs.c.reason).where(jobs.c.study == self._study.id, jobs.c.kind == "trial")
            invalid = trial_jobs.where(jobs.c.exit_code == _CONFIG_EXIT_CODE, jobs.c.ended > since)
            reason = transaction.scalar(invalid.limit(1))
            if reason is not None:
                return str(reason)
        last = sa.select(trials.c.state, trials.c.facts).where(trials.c.study == self._study.id, trials.c.ended > since)
        rows = transaction.execute(last.order_by(trials.c.ended.desc()).limit(self._config.failures)).all()
        if len(rows) < self._config.failures or any(row.state != "failed" for row in rows):
            return ""
        return f"trials failed in a row: {len(rows)}; the last one: {rows[0].facts.get('reason', '')}"

    def _fail(self, transaction: Transaction, reason: str) -> None:
        cancel_trials(transaction, self._study.id, "its study failed", now=time.time())
        self._end(transaction, "failed", reason)

    def _end(self, transaction: Transaction, state: str, reason: str) -> None:
        now = time.time()
        code = {"done": 0, "failed": 1}.get(state)
        values = {"state": state, "reason": reason, "exit_code": code, "ended": now, "updated": now}
        transaction.execute(jobs.update().where(jobs.c.id == self._job.id).values(values))
        queue.add_job_event(transaction, self._job.id, state, reason, now=now)
        transaction.notify(QUEUE_TOPIC, JOBS_TOPIC, job_topic(self._job.id))

    def _wanted_jobs(self) -> int:
        """Return how many jobs to add: one per free place, within `parallel`; one if no agent is connected."""
        missing = (1 if self._free is None else self._free) - list(self._jobs.values()).count("waiting")
        return missing if self._config.parallel is None else min(missing, self._config.parallel - len(self._jobs))

    def _propose(self) -> bool:
        """Add one job with the next trials. Return whether there were any."""
        handle, known = secrets.token_hex(8), {trial.handle for trial in self._open}
        try:
            proposals = self._ask(handle, known)
        except ClewError:
            raise
        except Exception as error:  # of a sampler: this study fails, and the others continue
            reason = f"its sampler failed: {type(error).__name__}: {error}"
            self._service.write(lambda transaction: self._fail(transaction, reason))
            return False
        if not proposals:
            return False
        job = self._service.write(lambda transaction: self._add_job(transaction, handle, proposals))
        if job is None:
            return False
        self._jobs[job] = "waiting"
        self._open += [_OpenTrial(each.number, job, handle, "waiting", "") for each in proposals]
        return True

    def _ask(self, handle: str, known: set[str]) -> list[ProposedTrial]:
        """Return the trials of the next job, which is called `handle`; `known` are the handles of other jobs."""
        with self._studies.opened(self._study) as study:
            # after a crash: trials that were proposed and have no job
            proposals = study.take_over(handle, lambda owner: owner in known)
            count = _pack_size(self._config, self._job, study.count()["waiting"], self._wanted_jobs())
            while len(proposals) < count:
                proposal = study.ask(handle)
                if proposal is None:
                    break
                proposals.append(proposal)
        return proposals

    def _add_job(self, transaction: Transaction, handle: str, proposals: Sequence[ProposedTrial]) -> int | None:
        """Insert a job and its trials; None if the study was cancelled or has ended since."""
        study, now = self._study, time.time()
        parent = transaction.execute(sa.select(jobs).where(jobs.c.id == self._job.id)).mappings().one()
        if parent["cancel"] is not None or parent["state"] in FINAL_STATES:
            return None
        same = {name: parent[name] for name in ("owner", "group", "resources", "priority", "dataset", "arguments")}
        job = transaction.add(
            jobs,
            **same,
            name=_job_name(parent["name"], proposals),
            kind="trial",
            spec={"trials": [{"trial": each.number, "settings": each.values} for each in proposals]},
            files={},
            state="waiting",
            attempt=0,
            attempts=max(parent["attempts"], self._config.retries + 1),
            handle=handle,
            study=study.id,
            reason="",
            facts={"of": parent["id"], "retry_of": None, "memory": None},
            created=now,
            updated=now,
        )
        for each in proposals:
            trial = Trial(number=each.number, state="running", settings=each.values, run=run_name(each.number))
            save_trial(transaction, study.id, trial)
            same_trial = (trials.c.study == study.id) & (trials.c.number == each.number)
            transaction.execute(trials.update().where(same_trial).values(job=job))
        touch_study(transaction, study.id, None)
        queue.add_job_event(transaction, job, "submitted", f"by study {study.id}", now=now)
        transaction.notify(QUEUE_TOPIC, JOBS_TOPIC, job_topic(job))
        return job


def _open_trials(connection: sa.Connection, study: int) -> list[_OpenTrial]:
    columns = (trials.c.number, jobs.c.id, jobs.c.handle, jobs.c.state, jobs.c.reason)
    query = sa.select(*columns).join(jobs, jobs.c.id == trials.c.job)
    query = query.where(trials.c.study == study, trials.c.ended.is_(None)).order_by(trials.c.number)
    return [_OpenTrial(*row) for row in connection.execute(query)]


def _unfinished_jobs(connection: sa.Connection, study: int) -> dict[int, str]:
    """Return the states of the jobs of a study's trials that wait or run, by number."""
    query = sa.select(jobs.c.id, jobs.c.state).where(jobs.c.study == study, jobs.c.kind == "trial")
    return {row[0]: row[1] for row in connection.execute(query.where(jobs.c.state.not_in(FINAL_STATES)))}


def _free_places(connection: sa.Connection, job: Any, timeout: float) -> int | None:
    """Return how many jobs like the study's trials fit on agents now; None if no agent is connected."""
    resources, now = Resources.model_validate(job.resources), time.time()
    may_run = agents.c.owner == job.owner
    if job.group is not None:
        may_run = may_run | (agents.c.group == job.group)
    candidates = connection.execute(sa.select(agents).where(may_run)).all()
    rows = [row for row in candidates if queue.is_alive(row.seen, now, timeout=timeout)]
    if not rows:
        return None
    active = sa.select(jobs.c.agent, jobs.c.resources).where(jobs.c.state.in_(ACTIVE_STATES))
    used: dict[int, list[Resources]] = {row.id: [] for row in rows}
    for agent, taken in connection.execute(active.where(jobs.c.agent.in_(list(used)))):
        used[agent].append(Resources.model_validate(taken))
    return sum(_places(remaining_slots(Slots.model_validate(row.slots), used[row.id]), resources) for row in rows)


def _places(free: Slots, resources: Resources) -> int:
    if not resources.fits(free):
        return 0
    needed = (
        (free.cpus, resources.total_cpus),
        (free.gpus, resources.total_gpus),
        (free.memory, resources.total_memory),
    )
    return min(amount // need for amount, need in needed if need)


def _pack_size(config: TuneConfig, job: Any, waiting: int, jobs_wanted: int) -> int:
    """Return the number of trials of the next job. Agents share the remaining trials if these do not fill all packs."""
    if config.packed is None:
        return 1
    automatic = _PACK_SIZE_GPU if Resources.model_validate(job.resources).gpus else _PACK_SIZE
    size = automatic if config.packed == "auto" else config.packed
    return max(1, min(size, math.ceil(waiting / max(jobs_wanted, 1))))


def _job_name(study: str, proposals: Sequence[ProposedTrial]) -> str:
    first, last = run_name(proposals[0].number), run_name(proposals[-1].number)
    return f"{study[:_LONGEST_NAME]}-{first}" + ("" if first == last else f"-{last.rpartition('-')[2]}")
