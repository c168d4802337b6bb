"""Trials as jobs: each is a run in a folder of its own, started by a launcher, on lease."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clew.core.config import to_yaml
from clew.core.files import write_text
from clew.core.log_tail import last_message
from clew.errors import ClewError, ConfigError
from clew.jobs.launchers.launcher import (
    END_STATES,
    JobState,
    LaunchedJob,
    Launcher,
    Slot,
    find_launcher,
    scheduler_names,
)
from clew.jobs.launchers.ranks import RanksLauncher
from clew.jobs.launchers.warm import WarmLauncher, wait_for_job
from clew.jobs.lease import Lease
from clew.jobs.supervisor import read_ends
from clew.jobs.task import TrainTask
from clew.runs import Run
from clew.tuning import objectives, space
from clew.tuning.config import TuneConfig
from clew.tuning.executor import TaskEnd, TaskReport, TrialTask
from clew.tuning.folder import StudyFolder
from clew.tuning.objectives import ValidationReader
from clew.tuning.space import Template

_PRUNED = "pruned"


@dataclass
class _Attempt:
    """One try at a piece."""

    piece: TrialTask
    run: Run
    lease: Lease
    number: int
    slot: int
    job: LaunchedJob | None = None
    """None: it ended before it began."""
    failed: str = ""
    """Why it did."""
    deaths: int = 0
    """Attempts before it that ended without being asked to."""
    away: bool = False
    """Begun on another host: only its files can be seen."""
    stamp: float | None = None
    moment: float = field(default_factory=time.monotonic)
    """When its holder was last seen to be alive, by our clock."""
    validations: ValidationReader = field(init=False)

    def __post_init__(self) -> None:
        self.validations = ValidationReader(self.run)


class JobExecutor:
    """An executor that starts `clew train` for every piece, as many at a time as there are rooms.

    All it knows is in files (`leases/NAME.aN`, `jobs/NAME.aN`, the run), so another process can take over at any time.
    """

    def __init__(
        self, folder: StudyFolder, template: Template, rooms: Sequence[Slot], launcher: Launcher | None = None
    ) -> None:
        config = template.tune
        assert config is not None, "a study has settings"
        self._folder, self._template, self._rooms, self._config = folder, template, list(rooms), config
        self._launcher = launcher or (WarmLauncher(again=True) if config.ranks == 1 else RanksLauncher(config.ranks))
        self._active: dict[str, _Attempt] = {}
        self._free = list(range(len(self._rooms)))
        self._stopping = False

    def room(self) -> int:
        return len(self._free)

    def start(self, piece: TrialTask) -> None:
        number = self._newest(piece)
        attempt = self._attempt(piece, number)
        known = self._job_file(attempt)
        if number and attempt.lease.seen() is not None and known.exists():
            told = json.loads(known.read_text())  # somebody began it: it is watched from now on
            host = told.pop("host")
            attempt.job = LaunchedJob(**told)
            attempt.away = host != socket.gethostname() and attempt.job.launcher not in scheduler_names()
        elif attempt.run.config_file.exists() and attempt.run.state == "finished":
            attempt.job = None
        else:
            attempt.lease.revoke()
            attempt = self._again(attempt)
        self._active[piece.name] = attempt

    def poll(self) -> Iterator[TaskReport | TaskEnd]:
        for attempt in list(self._active.values()):
            yield from self._reports(attempt)
            if attempt.piece.name in self._active:
                end = self._look(attempt)
                if end is not None:
                    self._forget(attempt)
                    yield end

    def prune(self, piece: TrialTask, why: str) -> None:
        attempt = self._active.get(piece.name)
        if attempt is not None and attempt.lease.seen() is not None:
            attempt.lease.tell(why)

    def drop(self, piece: TrialTask) -> None:
        attempt = self._active.get(piece.name)
        if attempt is not None:
            attempt.lease.revoke()
            self._forget(attempt)

    def stop(self) -> None:
        self._stopping = True
        for attempt in self._active.values():
            if attempt.lease.seen() is not None and attempt.job is not None:
                attempt.lease.tell("the study stops")
                self._of(attempt.job).stop(attempt.job)

    def close(self) -> None:
        self._active.clear()

    def rest(self, seconds: float) -> None:
        wait_for_job(seconds)

    def _attempt(self, piece: TrialTask, number: int) -> _Attempt:
        lease = Lease(self._folder.leases / f"{piece.name}.a{number}")
        return _Attempt(piece, self._folder.run(piece.name), lease, number, self._free.pop(0))

    def _newest(self, piece: TrialTask) -> int:
        """The number of the last attempt, counted from 1; 0 where there was none."""
        return max(
            (int(each.name.rpartition(".a")[2]) for each in self._folder.jobs.glob(f"{piece.name}.a*")), default=0
        )

    def _job_file(self, attempt: _Attempt) -> Path:
        return self._folder.jobs / f"{attempt.piece.name}.a{attempt.number}" / "job.json"

    def _again(self, before: _Attempt) -> _Attempt:
        """The next try at a piece: from its checkpoint, where there is one."""
        self._free.insert(0, before.slot)
        attempt = self._attempt(before.piece, max(before.number, self._newest(before.piece)) + 1)
        attempt.deaths = before.deaths
        try:
            task = self._task(attempt)
            attempt.lease.grant()
            folder = self._job_file(attempt).parent
            attempt.job = self._launcher.start(task, folder=folder, slot=self._rooms[attempt.slot])
            told = {**dataclasses.asdict(attempt.job), "host": socket.gethostname()}
            write_text(self._job_file(attempt), json.dumps(told))
        except ConfigError as error:  # a combination that cannot be: this trial's end, not the study's
            attempt.failed = str(error)
        return attempt

    def _task(self, attempt: _Attempt) -> TrainTask:
        run, lease = attempt.run, str(attempt.lease.path)
        if run.config_file.exists() and run.states():
            return TrainTask(resume=str(run.path), lease=lease)
        if run.path.exists():
            shutil.rmtree(run.path)  # begun, and nothing kept
        file = self._folder.jobs / f"{attempt.piece.name}.yaml"
        self._write(file, trial_settings(self._template, self._config, attempt.piece, self._folder))
        return TrainTask(recipe=str(file), output=str(run.path), lease=lease)

    def _write(self, file: Path, data: Mapping[str, Any]) -> None:
        write_text(file, to_yaml(data))

    def _of(self, job: LaunchedJob) -> Launcher:
        return self._launcher if self._launcher.name == job.launcher else find_launcher(job.launcher)

    def _reports(self, attempt: _Attempt) -> Iterator[TaskReport]:
        name = self._config.objectives[0].validated
        if name is None:
            return
        for step, metrics in attempt.validations.new():
            found = metrics.get(name)
            if found is not None and math.isfinite(found):
                yield TaskReport(attempt.piece, step, found)

    def _look(self, attempt: _Attempt) -> TaskEnd | None:
        """How it ended, if it did; one whose processes died, or went silent, is begun again."""
        if attempt.failed:
            return self._end(attempt, "failed", attempt.failed)
        if attempt.job is None:
            return self._finished(attempt)
        state = self._state(attempt, attempt.job)
        if state == "waiting":  # in a queue nobody gives signs of life
            attempt.moment = time.monotonic()
            return None
        if state not in END_STATES:
            return self._silent(attempt)
        return self._ended(attempt, state)

    def _state(self, attempt: _Attempt, job: LaunchedJob) -> JobState:
        if not attempt.away:
            return self._of(job).state(job)
        ended = attempt.run.config_file.exists() and attempt.run.end() is not None
        return "failed" if ended else "running"

    def _silent(self, attempt: _Attempt) -> TaskEnd | None:
        stamp = attempt.lease.seen()
        if stamp != attempt.stamp:
            attempt.stamp, attempt.moment = stamp, time.monotonic()
        if time.monotonic() - attempt.moment < self._config.lease_seconds:
            return None
        return self._retry(attempt, f"no sign of life for {self._config.lease_seconds:g} s")

    def _ended(self, attempt: _Attempt, state: JobState) -> TaskEnd | None:
        run = attempt.run
        end = run.end() if run.config_file.exists() else None
        if state == "cancelled":
            return self._end(attempt, "stopped" if self._stopping else "failed", "cancelled at the scheduler")
        if _killed(attempt.job) and (end is None or end["status"] != "finished"):
            return self._retry(attempt, "its processes were killed")
        if end is None:  # it never began, or died without a word
            if state == "failed" and not run.config_file.exists():
                return self._end(attempt, "failed", _last_words(attempt.job))
            return self._retry(attempt, f"it ended without a word ({_last_words(attempt.job)})")
        if end["status"] == "finished":
            return self._finished(attempt)
        if end["status"] == "stopped":
            with contextlib.suppress(FileNotFoundError):
                told = attempt.lease.path.read_text()
                if told.startswith(_PRUNED):
                    return self._end(attempt, "pruned", told)
            return self._end(attempt, "stopped") if self._stopping else self._go_on(attempt)
        if end.get("error") == "LostWorkerError" or end["status"] == "interrupted":
            return self._retry(attempt, str(end["message"]))
        lacks = objectives.missing_metric_message(str(end["message"]), self._config.objectives)
        return self._end(attempt, "failed", lacks or str(end["message"]), always=bool(lacks))

    def _retry(self, attempt: _Attempt, why: str) -> TaskEnd | None:
        attempt.lease.revoke()
        if attempt.job is not None and not attempt.away:
            self._of(attempt.job).kill(attempt.job)
        if self._stopping:
            return self._end(attempt, "stopped")
        attempt.deaths += 1
        if attempt.deaths > self._config.retries:
            return self._end(attempt, "failed", f"given up after {attempt.deaths} attempts: {why}")
        return self._go_on(attempt)

    def _go_on(self, attempt: _Attempt) -> TaskEnd | None:
        attempt.lease.revoke()
        self._active[attempt.piece.name] = self._again(attempt)
        return None

    def _finished(self, attempt: _Attempt) -> TaskEnd:
        try:
            values = objectives.objective_values(attempt.run, self._config.objectives)
        except objectives.MissingMetricError as error:
            return self._end(attempt, "failed", str(error), always=True)
        return self._end(attempt, "complete", values=values)

    def _end(
        self,
        attempt: _Attempt,
        state: Literal["complete", "pruned", "failed", "stopped"],
        reason: str = "",
        values: tuple[float, ...] = (),
        *,
        always: bool = False,
    ) -> TaskEnd:
        cost = objectives.RunCost(0.0, 0.0)
        with contextlib.suppress(ClewError, OSError):
            cost = objectives.run_cost(attempt.run)
        if state != "stopped":
            attempt.lease.revoke()
        tries = max(attempt.number, 1)
        return TaskEnd(attempt.piece, state, values, reason, cost.seconds, cost.cpu, tries, cost.begun, always)

    def _forget(self, attempt: _Attempt) -> None:
        self._active.pop(attempt.piece.name, None)
        self._free.append(attempt.slot)


def trial_settings(template: Template, config: TuneConfig, piece: TrialTask, folder: StudyFolder) -> Mapping[str, Any]:
    """The document of a trial's run: that of the study with the trial's values, without the study.

    Raises:
        ConfigError: the values do not go together.
    """
    fixed = {"train.workers": 1, **common_settings(template.data, config)}  # as many as the launcher starts
    if piece.fold is not None:
        fixed["train.dataset"] = str((folder.folds / f"fold-{piece.fold}").absolute())
    return space.trial_document(template.changed({**fixed, **piece.values}, piece.name).data, {})


def common_settings(data: Mapping[str, Any], config: TuneConfig) -> dict[str, Any]:
    """What all trials of a study have beside their values, by key; `data` is its document."""
    fixed: dict[str, Any] = {}
    lead = next((each for each in config.objectives if each.validated), None)
    if lead is not None:  # the weights that are kept are those the objective speaks of
        fixed |= {"train.best.metric": lead.validated, "train.best.direction": lead.direction}
    if config.packed is not None:  # one pass over the data serves all trials of a pack
        order, seed = (data["train"].get(name) for name in ("order", "seed"))
        fixed["train.order"] = seed if order is None else order
    return fixed


def _killed(job: LaunchedJob | None) -> bool:
    """Whether a signal ended one of its processes."""
    return job is not None and any(end.code < 0 for folder in _folders(job) for end in read_ends(folder))


def _folders(job: LaunchedJob) -> list[Path]:
    """The folder of a job, and those of its ranks."""
    return [Path(job.folder), *Path(job.folder).glob("rank-*")]


def _last_words(job: LaunchedJob | None) -> str:
    """The last line that a job printed."""
    logs = [] if job is None else sorted(Path(job.folder).glob("**/log.txt"))
    return last_message(*reversed(logs))
