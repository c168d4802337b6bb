"""Studies that propose trials over REST. They are stored as folders of the server, as `clew tune` stores them.

The calls are those of `clew.tuning.study.Study`. A study is data (names, ranges and numbers); the server runs no trial.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from clew.client.trial import AskRequest, AssignedTrial, IntermediateValue, NewStudy, Trial, TrialResult
from clew.errors import RunError
from clew.server.accounts.caller import Caller
from clew.server.database.tables import studies, trials
from clew.server.database.writer import Transaction
from clew.server.jobs import queue
from clew.server.jobs.job_logs import JobLogs
from clew.server.jobs.topics import job_topic
from clew.server.problems import RequestError, forbidden, not_found
from clew.server.service import Service
from clew.server.studies.study_rows import (
    EXTERNAL_FACT,
    TRIAL_JOBS_FACT,
    best_trials,
    insert_study,
    save_trial,
    touch_study,
    visible_study,
)
from clew.tuning.config import TuneConfig

if TYPE_CHECKING:
    from clew.tuning.snapshot import TrialSummary
    from clew.tuning.study import Study

_MAX_OPEN = 64
"""Studies that stay open."""
_STUDY_ATTEMPT = 1
"""The attempt of a study's job: no agent runs it, so it has one log."""
_MAX_TRIALS = 100_000
"""Trials per study."""


@dataclass
class _OpenStudy:
    study: Study | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class OpenStudies:
    """The open studies of a server. Opening one takes long, so some stay open; one thread uses a study at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open: OrderedDict[int, _OpenStudy] = OrderedDict()
        self._lock = threading.Lock()

    def make(self, caller: Caller, new: NewStudy) -> int:
        """Create a study and return its id. An external study with the same name and job is the same study.

        Raises:
            RequestError: its settings are only for studies in a folder.
            ConfigError: the sampler or pruner does not fit.
        """
        tune = new.tune
        if not new.external:
            if caller.job is not None:
                raise forbidden("the token of a job cannot create a study here")
            if tune.storage != "journal" or tune.folds is not None:
                raise RequestError(422, "a study on the server has no storage and no folds of its own", where="tune")
            check_study(tune, new.epochs)
        return self._service.write(lambda transaction: _insert_study(transaction, caller, new))

    def ask(self, caller: Caller, number: int, request: AskRequest) -> list[AssignedTrial]:
        """Propose trials; fewer than requested, or none, when the study has proposed all its trials."""
        from clew.tuning.proposed_trial import EXTERNAL

        with self.opened(self._row(caller, number)) as study:
            proposed: list[AssignedTrial] = []
            for _ in range(request.count):
                lease = f"{EXTERNAL}-{secrets.token_hex(8)}"
                trial = study.ask(lease, within=request.within)
                if trial is None:
                    break
                proposed.append(AssignedTrial(trial=trial.number, settings=trial.values, lease=lease))
            self._save(number, study, [each.trial for each in proposed])
        return proposed

    def report(self, caller: Caller, number: int, report: IntermediateValue) -> bool:
        """Record an intermediate value and return whether the trial should be pruned."""
        with self.opened(self._row(caller, number, report.trial)) as study:
            _check_lease(study, report.trial, report.lease)
            prune = study.report(report.trial, report.step, report.value)
            self._save(number, study, [report.trial])
        return prune

    def tell(self, caller: Caller, number: int, result: TrialResult) -> bool:
        """Record the result of a trial.

        Returns:
            False if a result was recorded before.

        Raises:
            RequestError: the result is not exactly one of values, pruned and failed.
        """
        if sum((bool(result.values), result.pruned, result.failed is not None)) != 1:
            raise RequestError(422, "give one of values, pruned and failed")
        state: Any = "complete" if result.values else "pruned" if result.pruned else "failed"
        row = self._row(caller, number, result.trial)
        facts = result.model_dump(include={"spread", "seconds", "cpu", "attempts", "started"})
        with self.opened(row) as study:
            if study.trial(result.trial).state not in ("complete", "pruned", "failed"):
                _check_lease(study, result.trial, result.lease)
            reason = result.failed or result.reason
            accepted = study.tell(result.trial, result.values or None, state=state, reason=reason, **facts)
            self.save_result(row, study, result.trial, job=caller.job, new=accepted)
        return accepted

    def save_result(self, row: Any, study: Study, trial: int, *, job: int | None = None, new: bool = True) -> None:
        """Write the result of a trial to the database, also if it was recorded before: the server may have died.

        Args:
            row: The row of the study.
            study: The study.
            trial: The number of the trial.
            job: The job of the trial, if the trials of the study are jobs.
            new: Whether the result was not recorded before. The study's job then prints it.
        """
        if new and row.facts.get(TRIAL_JOBS_FACT):
            logs = JobLogs(self._service.config.folder)
            logs.append(row.job, _STUDY_ATTEMPT, logs.size(row.job), _result_line(study.trial(trial)).encode())
            self._service.notifications.notify([job_topic(row.job)])
        best = [_best_row(outcome) for outcome in study.best()]
        self._save(row.id, study, [trial], best, () if job is None else (job,))

    def push(self, caller: Caller, number: int, outcomes: tuple[Trial, ...]) -> None:
        """Save trials of an external study."""

        def work(transaction: Transaction) -> None:
            row = visible_study(transaction.connection, caller, number)
            if not row.facts.get(EXTERNAL_FACT):
                raise RequestError(409, "the server proposes the trials of this study", hint="report their results")
            for trial in outcomes:
                save_trial(transaction, number, trial)
            touch_study(transaction, number, best_trials(transaction, number, row.objectives))

        self._service.write(work)

    def _row(self, caller: Caller, number: int, trial: int | None = None) -> Any:
        """Return the row of a study of which the caller may change a trial, or ask for one.

        Raises:
            RequestError: there is none, or only the jobs of its trials may.
        """
        with self._service.database.read() as connection:
            if caller.job is not None:
                return _row_of_trial_job(connection, caller.job, number, trial)
            row = visible_study(connection, caller, number)
        if row.facts.get(EXTERNAL_FACT):
            raise RequestError(409, "the trials of this study are proposed elsewhere", hint="ask where it was started")
        if row.facts.get(TRIAL_JOBS_FACT):
            raise RequestError(409, "the trials of this study are jobs", hint="start an agent; it takes them")
        return row

    @contextmanager
    def opened(self, row: Any) -> Iterator[Study]:
        """Open the study of a row for this thread only."""
        number = row.id
        with self._lock:
            opened = self._open.setdefault(number, _OpenStudy())
            self._open.move_to_end(number)
            for old in list(self._open)[:-_MAX_OPEN]:
                if not self._open[old].lock.locked():
                    del self._open[old]
        with opened.lock:
            if opened.study is None:
                opened.study = _open_folder(self._service.config.folder / "studies" / str(number), row)
            try:
                yield opened.study
            except RunError as error:
                raise RequestError(409, str(error)) from None

    def _save(
        self,
        number: int,
        study: Study,
        changed: list[int],
        best: list[dict[str, Any]] | None = None,
        jobs: Sequence[int] = (),
    ) -> None:
        """Write changed trials of a study to the database; `jobs` are jobs of trials that ended."""
        summaries = [_trial_of(study.trial(trial)) for trial in changed]

        def work(transaction: Transaction) -> None:
            for trial in summaries:
                save_trial(transaction, number, trial)
            touch_study(transaction, number, best)
            for job in jobs:
                queue.end_if_silent(transaction, job, now=time.time())

        self._service.write(work)


def _open_folder(path: Path, row: Any) -> Study:
    from clew.tuning.study import Study

    config = TuneConfig.model_validate(row.spec["tune"])
    path.parent.mkdir(parents=True, exist_ok=True)
    if (path / "config.yaml").is_file():
        return Study.open(path)
    return Study.create(path, row.spec, config)


def check_study(tune: TuneConfig, epochs: int) -> None:
    """Check that the server can propose the trials of a study.

    Raises:
        RequestError: there is no space, or there are too many trials.
        ConfigError: the sampler or pruner does not fit.
    """
    from clew.tuning import optuna_setup, space

    if not tune.space or tune.trials > _MAX_TRIALS:
        raise RequestError(422, f"name a space, and at most {_MAX_TRIALS:,} trials", where="tune")
    space.dependency_order(tune.space)
    optuna_setup.create_sampler(tune), optuna_setup.create_pruner(tune.pruner, epochs)


def _row_of_trial_job(connection: sa.Connection, job: int, study: int, trial: int | None) -> Any:
    """Return the row of a study for the token of a job that has this trial.

    The token is the job's lease: it is void when the trial is assigned to another agent.
    """
    assigned = (trials.c.study == study) & (trials.c.number == trial) & (trials.c.job == job)
    query = sa.select(studies).join(trials, trials.c.study == studies.c.id).where(assigned)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise not_found("study", study)
    return row


def _check_lease(study: Study, trial: int, lease: str | None) -> None:
    if lease is not None:
        study.check_lease(trial, lease)


def _insert_study(transaction: Transaction, caller: Caller, new: NewStudy) -> int:
    if new.external:
        same = sa.select(studies).where(studies.c.owner == caller.user, studies.c.name == new.name)
        for row in transaction.execute(same.where(studies.c.job == caller.job)):
            if row.facts.get(EXTERNAL_FACT):
                return int(row.id)
    return insert_study(transaction, caller, new, job=caller.job, facts={EXTERNAL_FACT: new.external})


def _trial_of(outcome: TrialSummary) -> Trial:
    return Trial(
        number=outcome.number,
        state=outcome.state,
        settings=outcome.settings,
        values=outcome.values,
        reports=dict(outcome.reports),
        reason=outcome.reason[:2000],
        seconds=outcome.seconds,
        attempts=outcome.attempts,
        started=outcome.started,
    )


def _result_line(outcome: TrialSummary) -> str:
    result = "  ".join(f"{value:.6g}" for value in outcome.values) or outcome.reason
    return f"trial {outcome.number} {outcome.state}  {result}\n"


def _best_row(outcome: TrialSummary) -> dict[str, Any]:
    return _trial_of(outcome).model_dump(mode="json", include={"number", "settings", "values"})
