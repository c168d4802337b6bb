"""Studies that propose trials over REST. They are stored as folders of the server, as `clew tune` stores them.

The calls are those of `clew.tuning.study.Study`. A study is data (names, ranges and numbers); the server runs no trial.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from clew.client.trial import AskRequest, AssignedTrial, IntermediateValue, NewStudy, Trial, TrialResult
from clew.errors import RunError
from clew.server.accounts.audit import record_action
from clew.server.accounts.caller import Caller
from clew.server.database.tables import studies
from clew.server.database.writer import Transaction
from clew.server.problems import RequestError, forbidden
from clew.server.service import Service
from clew.server.studies.study_rows import (
    EXTERNAL_FACT,
    STUDIES_TOPIC,
    best_trials,
    save_trial,
    study_topic,
    touch_study,
    visible_study,
)
from clew.tuning.config import TuneConfig

if TYPE_CHECKING:
    from clew.tuning.snapshot import TrialSummary
    from clew.tuning.study import Study

_MAX_OPEN = 64
"""Studies that stay open."""
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
        from clew.tuning import optuna_setup, space

        tune = new.tune
        if not new.external:
            if caller.job is not None:
                raise forbidden("the token of a job cannot create a study here")
            if tune.storage != "journal" or tune.folds is not None:
                raise RequestError(422, "a study on the server has no storage and no folds of its own", where="tune")
            if not tune.space or tune.trials > _MAX_TRIALS:
                raise RequestError(422, f"name a space, and at most {_MAX_TRIALS:,} trials", where="tune")
            space.dependency_order(tune.space)
            optuna_setup.create_sampler(tune), optuna_setup.create_pruner(tune.pruner, new.epochs)
        return self._service.write(lambda transaction: _insert_study(transaction, caller, new))

    def ask(self, caller: Caller, number: int, request: AskRequest) -> list[AssignedTrial]:
        """Propose trials; fewer than requested, or none, when the study has proposed all its trials."""
        from clew.tuning.study import EXTERNAL

        with self._opened(caller, number) as study:
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
        with self._opened(caller, number) as study:
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
        with self._opened(caller, number) as study:
            if study.trial(result.trial).state not in ("complete", "pruned", "failed"):
                _check_lease(study, result.trial, result.lease)
            accepted = study.tell(result.trial, result.values or None, state=state, reason=result.failed or "")
            if accepted:
                best = [_best_row(outcome) for outcome in study.best()]
                self._save(number, study, [result.trial], best=best)
        return accepted

    def push(self, caller: Caller, number: int, trials: tuple[Trial, ...]) -> None:
        """Save trials of an external study."""

        def work(transaction: Transaction) -> None:
            row = visible_study(transaction.connection, caller, number)
            if not row.facts.get(EXTERNAL_FACT):
                raise RequestError(409, "the server proposes the trials of this study", hint="report their results")
            for trial in trials:
                save_trial(transaction, number, trial)
            touch_study(transaction, number, best_trials(transaction, number, row.objectives))

        self._service.write(work)

    @contextmanager
    def _opened(self, caller: Caller, number: int) -> Iterator[Study]:
        """Open a study for this thread only."""
        with self._service.database.read() as connection:
            row = visible_study(connection, caller, number)
        if row.facts.get(EXTERNAL_FACT):
            raise RequestError(409, "the trials of this study are proposed elsewhere", hint="ask where it was started")
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

    def _save(self, number: int, study: Study, changed: list[int], best: list[dict[str, Any]] | None = None) -> None:
        """Write changed trials of a study to the database."""
        trials = [_trial_of(study.trial(trial)) for trial in changed]

        def work(transaction: Transaction) -> None:
            for trial in trials:
                save_trial(transaction, number, trial)
            touch_study(transaction, number, best)

        self._service.write(work)


def _open_folder(path: Path, row: Any) -> Study:
    from clew.tuning.study import Study

    config = TuneConfig.model_validate(row.spec["tune"])
    path.parent.mkdir(parents=True, exist_ok=True)
    if (path / "config.yaml").is_file():
        return Study.open(path)
    return Study.create(path, row.spec, config)


def _check_lease(study: Study, trial: int, lease: str | None) -> None:
    if lease is not None:
        study.check_lease(trial, lease)


def _insert_study(transaction: Transaction, caller: Caller, new: NewStudy) -> int:
    caller.check_job_kind("tune", transaction.connection)
    group, now = caller.group_id(new.group, transaction.connection), time.time()
    if new.external:
        same = sa.select(studies).where(studies.c.owner == caller.user, studies.c.name == new.name)
        for row in transaction.execute(same.where(studies.c.job == caller.job)):
            if row.facts.get(EXTERNAL_FACT):
                return int(row.id)
    tune = new.tune.model_dump(mode="json")
    number = transaction.add(
        studies,
        owner=caller.user,
        group=group,
        name=new.name,
        state="open",
        spec={"tune": tune, "train": {"epochs": new.epochs}},
        space=tune["space"],
        objectives=[objective.model_dump() for objective in new.tune.objectives],
        best=[],
        facts={EXTERNAL_FACT: new.external},
        job=caller.job,
        created=now,
        updated=now,
    )
    record_action(transaction, caller, "make study", study_topic(number), name=new.name)
    transaction.notify(STUDIES_TOPIC)
    return number


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


def _best_row(outcome: TrialSummary) -> dict[str, Any]:
    return _trial_of(outcome).model_dump(mode="json", include={"number", "settings", "values"})
