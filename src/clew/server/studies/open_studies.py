"""Studies on the server: asked and told over REST, kept as folders of the server's as `clew tune` keeps them.

The calls are those of `clew.tuning.study.Study`. A study is data: names, ranges and numbers; nothing of it is run.
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

from clew.client.trial import Ask, Asked, NewStudy, Reported, Told, Trial
from clew.errors import RunError
from clew.server.accounts.callers import Caller, record
from clew.server.database.tables import studies
from clew.server.database.writer import Change
from clew.server.problems import RefusedError, forbidden
from clew.server.service import Service
from clew.server.studies.study_rows import TOPIC, best_of, look, put, settle, topic
from clew.tuning.config import TuneConfig

if TYPE_CHECKING:
    from clew.tuning.snapshot import TrialSummary
    from clew.tuning.study import Study

_MOST = 64
"""Studies kept open."""
_LARGEST = 100_000
"""Trials of a study."""


@dataclass
class _Open:
    study: Study | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Studies:
    """Those that are open. Opening takes long, so some stay; each is for one thread at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._lock = threading.Lock()

    def make(self, caller: Caller, given: NewStudy) -> int:
        """Begin a study; its number. One that goes on elsewhere is found again by its name and job.

        Raises:
            RefusedError: its settings are for studies in a folder.
            ConfigError: sampler or pruner do not fit.
        """
        from clew.tuning import optuna_setup, space

        tune = given.tune
        if not given.elsewhere:
            if caller.job is not None:
                raise forbidden("a job's token begins no study here")
            if tune.storage != "journal" or tune.folds is not None:
                raise RefusedError(422, "a study here has neither storage nor folds of its own", where="tune")
            if not tune.space or tune.trials > _LARGEST:
                raise RefusedError(422, f"name a space, and at most {_LARGEST:,} trials", where="tune")
            space.dependency_order(tune.space)
            optuna_setup.create_sampler(tune), optuna_setup.create_pruner(tune.pruner, given.epochs)
        return self._service.write(lambda change: _make(change, caller, given))

    def ask(self, caller: Caller, number: int, given: Ask) -> list[Asked]:
        """Trials to be done; fewer, or none, when all that were wanted were asked for."""
        from clew.tuning.study import EXTERNAL

        with self._held(caller, number) as study:
            found: list[Asked] = []
            for _ in range(given.count):
                lease = f"{EXTERNAL}-{secrets.token_hex(8)}"
                asked = study.ask(lease, within=given.within)
                if asked is None:
                    break
                found.append(Asked(trial=asked.number, settings=asked.values, lease=lease))
            self._keep(number, study, [each.trial for each in found])
        return found

    def report(self, caller: Caller, number: int, given: Reported) -> bool:
        """Whether a trial should be pruned."""
        with self._held(caller, number) as study:
            _check(study, given.trial, given.lease)
            prune = study.report(given.trial, given.step, given.value)
            self._keep(number, study, [given.trial])
        return prune

    def tell(self, caller: Caller, number: int, given: Told) -> bool:
        """How a trial ended; False where that was told before.

        Raises:
            RefusedError: not one of values, pruned and failed.
        """
        if sum((bool(given.values), given.pruned, given.failed is not None)) != 1:
            raise RefusedError(422, "give one of values, pruned and failed")
        state: Any = "complete" if given.values else "pruned" if given.pruned else "failed"
        with self._held(caller, number) as study:
            if study.trial(given.trial).state not in ("complete", "pruned", "failed"):
                _check(study, given.trial, given.lease)
            news = study.tell(given.trial, given.values or None, state=state, reason=given.failed or "")
            if news:
                self._keep(number, study, [given.trial], best=_best(study))
        return news

    def push(self, caller: Caller, number: int, given: tuple[Trial, ...]) -> None:
        """Take over how trials of a study elsewhere stand."""

        def work(change: Change) -> None:
            row = look(change.connection, caller, number)
            if not row.facts.get("elsewhere"):
                raise RefusedError(409, "this study is asked here", do="tell how its trials ended")
            for trial in given:
                put(change, number, trial)
            settle(change, number, best_of(change, number, row.objectives))

        self._service.write(work)

    @contextmanager
    def _held(self, caller: Caller, number: int) -> Iterator[Study]:
        """A study that is asked here, for this thread alone."""
        with self._service.database.read() as connection:
            row = look(connection, caller, number)
        if row.facts.get("elsewhere"):
            raise RefusedError(409, "this study goes on elsewhere", do="ask where it was begun")
        with self._lock:
            opened = self._open.setdefault(number, _Open())
            self._open.move_to_end(number)
            for old in list(self._open)[:-_MOST]:
                if not self._open[old].lock.locked():
                    del self._open[old]
        with opened.lock:
            if opened.study is None:
                opened.study = _opened(self._service.config.folder / "studies" / str(number), row)
            try:
                yield opened.study
            except RunError as error:
                raise RefusedError(409, str(error)) from None

    def _keep(self, number: int, study: Study, changed: list[int], best: list[dict[str, Any]] | None = None) -> None:
        """Have the database know what the study does."""
        found = [_trial(study.trial(trial)) for trial in changed]

        def work(change: Change) -> None:
            for trial in found:
                put(change, number, trial)
            settle(change, number, best)

        self._service.write(work)


def _opened(path: Path, row: Any) -> Study:
    from clew.tuning.study import Study

    config = TuneConfig.model_validate(row.spec["tune"])
    path.parent.mkdir(parents=True, exist_ok=True)
    if (path / "config.yaml").is_file():
        return Study.open(path)
    return Study.create(path, row.spec, config)


def _check(study: Study, trial: int, lease: str | None) -> None:
    if lease is not None:
        study.check_lease(trial, lease)


def _make(change: Change, caller: Caller, given: NewStudy) -> int:
    group, now = caller.group(given.group, change.connection), time.time()
    if given.elsewhere:
        same = sa.select(studies).where(studies.c.owner == caller.user, studies.c.name == given.name)
        for row in change.execute(same.where(studies.c.job == caller.job)):
            if row.facts.get("elsewhere"):
                return int(row.id)
    tune = given.tune.model_dump(mode="json")
    goals = [each.model_dump() for each in given.tune.objectives]
    number = change.add(
        studies,
        owner=caller.user,
        group=group,
        name=given.name,
        state="open",
        spec={"tune": tune, "train": {"epochs": given.epochs}},
        space=tune["space"],
        objectives=goals,
        best=[],
        facts={"elsewhere": given.elsewhere},
        job=caller.job,
        created=now,
        updated=now,
    )
    record(change, caller, "make study", topic(number), name=given.name)
    change.tell(TOPIC)
    return number


def _trial(each: TrialSummary) -> Trial:
    return Trial(
        number=each.number,
        state=each.state,
        settings=each.settings,
        values=each.values,
        reports=dict(each.reports),
        reason=each.reason[:2000],
        seconds=each.seconds,
        attempts=each.attempts,
        begun=each.started,
    )


def _best(study: Study) -> list[dict[str, Any]]:
    return [_shown(_trial(each)) for each in study.best()]


def _shown(trial: Trial) -> dict[str, Any]:
    return trial.model_dump(mode="json", include={"number", "settings", "values"})
