"""Trials as jobs: each task is a run in its own folder, started by a launcher and held by a lease."""

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
from clew.errors import ClewError, ConfigError, MissingMetricError
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
    """One attempt at a task."""

    task: TrialTask
    run: Run
    lease: Lease
    number: int
    slot: int
    job: LaunchedJob | None = None
    """None if the attempt ended before a job was started."""
    failure: str = ""
    """Why no job was started."""
    crashes: int = 0
    """Earlier attempts that ended without being asked to."""
    remote: bool = False
    """Started on another host: only its files are visible."""
    lease_time: float | None = None
    """Modification time of the lease at the last check."""
    alive_at: float = field(default_factory=time.monotonic)
    """When the lease was last seen to change, by the clock of this process."""
    validations: ValidationReader = field(init=False)

    def __post_init__(self) -> None:
        self.validations = ValidationReader(self.run)


class JobExecutor:
    """Starts one training job per task, as many at a time as there are slots.

    Its whole state is in files (`leases/NAME.aN`, `jobs/NAME.aN`, the run), so that another process can take over at
    any time.
    """

    def __init__(
        self, folder: StudyFolder, template: Template, slots: Sequence[Slot], launcher: Launcher | None = None
    ) -> None:
        config = template.tune
        assert config is not None, "a study has settings"
        self._folder, self._template, self._slots, self._config = folder, template, list(slots), config
        self._launcher = launcher or (WarmLauncher(again=True) if config.ranks == 1 else RanksLauncher(config.ranks))
        self._active: dict[str, _Attempt] = {}
        self._free = list(range(len(self._slots)))
        self._stopping = False

    def capacity(self) -> int:
        return len(self._free)

    def start(self, task: TrialTask) -> None:
        number = self._last_attempt(task)
        attempt = self._attempt(task, number)
        job_file = self._job_file(attempt)
        if number and attempt.lease.last_heartbeat() is not None and job_file.exists():
            facts = json.loads(job_file.read_text())  # another coordinator started it: watch it from now on
            host = facts.pop("host")
            attempt.job = LaunchedJob(**facts)
            attempt.remote = host != socket.gethostname() and attempt.job.launcher not in scheduler_names()
        elif attempt.run.config_file.exists() and attempt.run.state == "finished":
            attempt.job = None
        else:
            attempt.lease.revoke()
            attempt = self._start_attempt(attempt)
        self._active[task.name] = attempt

    def poll(self) -> Iterator[TaskReport | TaskEnd]:
        for attempt in list(self._active.values()):
            yield from self._reports(attempt)
            if attempt.task.name in self._active:
                end = self._check(attempt)
                if end is not None:
                    self._forget(attempt)
                    yield end

    def prune(self, task: TrialTask, reason: str) -> None:
        attempt = self._active.get(task.name)
        if attempt is not None and attempt.lease.last_heartbeat() is not None:
            attempt.lease.request_stop(reason)

    def drop(self, task: TrialTask) -> None:
        attempt = self._active.get(task.name)
        if attempt is not None:
            attempt.lease.revoke()
            self._forget(attempt)

    def stop(self) -> None:
        self._stopping = True
        for attempt in self._active.values():
            if attempt.lease.last_heartbeat() is not None and attempt.job is not None:
                attempt.lease.request_stop("the study stops")
                self._launcher_of(attempt.job).stop(attempt.job)

    def close(self) -> None:
        self._active.clear()

    def wait(self, seconds: float) -> None:
        wait_for_job(seconds)

    def _attempt(self, task: TrialTask, number: int) -> _Attempt:
        lease = Lease(self._folder.leases / f"{task.name}.a{number}")
        return _Attempt(task, self._folder.run(task.name), lease, number, self._free.pop(0))

    def _last_attempt(self, task: TrialTask) -> int:
        """Return the number of the last attempt, counted from 1; 0 if there was none.

        A coordinator that was killed may have granted the lease of an attempt whose job it did not start.
        """
        traces = (
            path for folder in (self._folder.jobs, self._folder.leases) for path in folder.glob(f"{task.name}.a*")
        )
        return max((int(path.name.rpartition(".a")[2]) for path in traces), default=0)

    def _job_file(self, attempt: _Attempt) -> Path:
        return self._folder.jobs / f"{attempt.task.name}.a{attempt.number}" / "job.json"

    def _start_attempt(self, previous: _Attempt) -> _Attempt:
        """Start the next attempt at a task, from its checkpoint if there is one."""
        self._free.insert(0, previous.slot)
        attempt = self._attempt(previous.task, max(previous.number, self._last_attempt(previous.task)) + 1)
        attempt.crashes = previous.crashes
        try:
            task = self._train_task(attempt)
            attempt.lease.grant()
            folder = self._job_file(attempt).parent
            attempt.job = self._launcher.start(task, folder=folder, slot=self._slots[attempt.slot])
            facts = {**dataclasses.asdict(attempt.job), "host": socket.gethostname()}
            write_text(self._job_file(attempt), json.dumps(facts))
        except ConfigError as error:  # an invalid combination of values ends this trial, not the study
            attempt.failure = str(error)
        return attempt

    def _train_task(self, attempt: _Attempt) -> TrainTask:
        run = attempt.run
        if run.config_file.exists() and run.states():
            return TrainTask(resume=str(run.path), lease=str(attempt.lease.path))
        if run.path.exists():
            shutil.rmtree(run.path)  # it was started and has no checkpoint
        file = self._folder.jobs / f"{attempt.task.name}.yaml"
        self._write(file, trial_settings(self._template, self._config, attempt.task, self._folder))
        return TrainTask(recipe=str(file), output=str(run.path), lease=str(attempt.lease.path))

    def _write(self, file: Path, data: Mapping[str, Any]) -> None:
        write_text(file, to_yaml(data))

    def _launcher_of(self, job: LaunchedJob) -> Launcher:
        return self._launcher if self._launcher.name == job.launcher else find_launcher(job.launcher)

    def _reports(self, attempt: _Attempt) -> Iterator[TaskReport]:
        name = self._config.objectives[0].validated
        if name is None:
            return
        for step, metrics in attempt.validations.new():
            value = metrics.get(name)
            if value is not None and math.isfinite(value):
                yield TaskReport(attempt.task, step, value)

    def _check(self, attempt: _Attempt) -> TaskEnd | None:
        """Return how an attempt ended, or None. An attempt that crashed or stopped responding is started again."""
        if attempt.failure:
            return self._end(attempt, "failed", attempt.failure)
        if attempt.job is None:
            return self._finished(attempt)
        state = self._state(attempt, attempt.job)
        if state == "waiting":  # a queued job sends no heartbeat
            attempt.alive_at = time.monotonic()
            return None
        if state not in END_STATES:
            return self._check_heartbeat(attempt)
        return self._handle_end(attempt, state)

    def _state(self, attempt: _Attempt, job: LaunchedJob) -> JobState:
        if not attempt.remote:
            return self._launcher_of(job).state(job)
        has_ended = attempt.run.config_file.exists() and attempt.run.end() is not None
        return "failed" if has_ended else "running"

    def _check_heartbeat(self, attempt: _Attempt) -> TaskEnd | None:
        modified = attempt.lease.last_heartbeat()
        if modified != attempt.lease_time:
            attempt.lease_time, attempt.alive_at = modified, time.monotonic()
        if time.monotonic() - attempt.alive_at < self._config.lease_seconds:
            return None
        return self._retry(attempt, f"no heartbeat for {self._config.lease_seconds:g} s")

    def _handle_end(self, attempt: _Attempt, state: JobState) -> TaskEnd | None:
        run = attempt.run
        end = run.end() if run.config_file.exists() else None
        if state == "cancelled":
            return self._end(attempt, "stopped" if self._stopping else "failed", "cancelled at the scheduler")
        if _killed(attempt.job) and (end is None or end["status"] != "finished"):
            return self._retry(attempt, "its processes were killed")
        if end is None:  # it never started, or crashed without an end record
            if state == "failed" and not run.config_file.exists():
                return self._end(attempt, "failed", _last_log_line(attempt.job))
            return self._retry(attempt, f"it ended without a message ({_last_log_line(attempt.job)})")
        if end["status"] == "finished":
            return self._finished(attempt)
        if end["status"] == "stopped":
            with contextlib.suppress(FileNotFoundError):
                message = attempt.lease.path.read_text()
                if message.startswith(_PRUNED):
                    return self._end(attempt, "pruned", message)
            return self._end(attempt, "stopped") if self._stopping else self._restart(attempt)
        if end.get("error") == "LostWorkerError" or end["status"] == "interrupted":
            return self._retry(attempt, str(end["message"]))
        missing = objectives.missing_metric_message(end, self._config.objectives)
        return self._end(attempt, "failed", missing or str(end["message"]), systematic=bool(missing))

    def _retry(self, attempt: _Attempt, reason: str) -> TaskEnd | None:
        attempt.lease.revoke()
        if attempt.job is not None and not attempt.remote:
            self._launcher_of(attempt.job).kill(attempt.job)
        if self._stopping:
            return self._end(attempt, "stopped")
        attempt.crashes += 1
        if attempt.crashes > self._config.retries:
            return self._end(attempt, "failed", f"given up after {attempt.crashes} attempts: {reason}")
        return self._restart(attempt)

    def _restart(self, attempt: _Attempt) -> TaskEnd | None:
        attempt.lease.revoke()
        self._active[attempt.task.name] = self._start_attempt(attempt)
        return None

    def _finished(self, attempt: _Attempt) -> TaskEnd:
        try:
            values = objectives.objective_values(attempt.run, self._config.objectives)
        except MissingMetricError as error:
            return self._end(attempt, "failed", str(error), systematic=True)
        return self._end(attempt, "complete", values=values)

    def _end(
        self,
        attempt: _Attempt,
        state: Literal["complete", "pruned", "failed", "stopped"],
        reason: str = "",
        values: tuple[float, ...] = (),
        *,
        systematic: bool = False,
    ) -> TaskEnd:
        cost = objectives.RunCost(0.0, 0.0)
        with contextlib.suppress(ClewError, OSError):
            cost = objectives.run_cost(attempt.run)
        if state != "stopped":
            attempt.lease.revoke()
        count = max(attempt.number, 1)
        return TaskEnd(attempt.task, state, values, reason, cost.seconds, cost.cpu, count, cost.started, systematic)

    def _forget(self, attempt: _Attempt) -> None:
        self._active.pop(attempt.task.name, None)
        self._free.append(attempt.slot)


def trial_settings(template: Template, config: TuneConfig, task: TrialTask, folder: StudyFolder) -> Mapping[str, Any]:
    """Return the settings of a task: those of the study with the values of the trial, without the section `tune`.

    Raises:
        ConfigError: The values are not valid together.
    """
    shared = {**space.absolute_paths(template.data), **common_settings(template.data, config)}
    fixed = {"train.workers": 1, **shared}  # the launcher starts the workers
    if task.fold is not None:
        fixed["train.dataset"] = str((folder.folds / f"fold-{task.fold}").absolute())
    return space.trial_document(template.changed({**fixed, **task.values}, task.name).data, {})


def common_settings(data: Mapping[str, Any], config: TuneConfig) -> dict[str, Any]:
    """Return the settings that all trials of a study share, by key; `data` holds the settings of the study."""
    fixed: dict[str, Any] = {}
    first = next((objective for objective in config.objectives if objective.validated), None)
    if first is not None:  # the best checkpoint must be the one the objective is measured at
        fixed |= {"train.best.metric": first.validated, "train.best.direction": first.goal}
    if config.packed is not None:  # one pass over the data serves all trials of a pack
        order, seed = (data["train"].get(name) for name in ("order", "seed"))
        fixed["train.order"] = seed if order is None else order
    return fixed


def _killed(job: LaunchedJob | None) -> bool:
    """Return whether a signal ended one of the processes of a job."""
    return job is not None and any(end.code < 0 for folder in _folders(job) for end in read_ends(folder))


def _folders(job: LaunchedJob) -> list[Path]:
    """Return the folder of a job and those of its ranks."""
    return [Path(job.folder), *Path(job.folder).glob("rank-*")]


def _last_log_line(job: LaunchedJob | None) -> str:
    """Return the last line that a job printed."""
    logs = [] if job is None else sorted(Path(job.folder).glob("**/log.txt"))
    return last_message(*reversed(logs))
