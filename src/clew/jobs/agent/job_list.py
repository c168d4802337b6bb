"""The jobs of an agent: accepted, started once, watched, ended. This module knows no server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clew.client.job import HeldJob, JobOrder, JobResult, Slots
from clew.core.failure_message import failure_message
from clew.core.log_tail import last_message
from clew.errors import ClewError
from clew.jobs import supervisor
from clew.jobs.agent import commands
from clew.jobs.agent.folder import AgentFolder, JobFolder
from clew.jobs.agent.job_target import JobTarget
from clew.jobs.agent.resource_slots import free_slot
from clew.jobs.containers import mounted_folders
from clew.jobs.launchers.launcher import END_STATES, LaunchedJob, Launcher, SchedulerBusyError, Slot, Supervision
from clew.jobs.supervisor import CANCELLED, GRACE, STOPPED, ProcessSpec
from clew.jobs.task import Task, read_task, task_file

TaskOf = Callable[[JobOrder, AgentFolder], Task]
_FAULTS = (ClewError, OSError, ValueError, RecursionError)
"""Errors that a job may meet when it starts: the job fails and the agent continues."""
_START_PATIENCE = 60.0
"""Seconds after which a supervisor that has not started is given up."""
_RETRY_PAUSE = 5.0
"""Seconds between two attempts to submit a job to a scheduler that is busy."""


@dataclass
class AgentJob:
    """A job whose end the server has not confirmed."""

    folder: JobFolder
    order: JobOrder
    launched: LaunchedJob | None = None
    """None where it could not be started."""
    reason: str = ""
    """Why not."""
    busy: bool = False
    """Whether the scheduler may accept it later."""
    cancelled: bool = False
    forgotten: bool = False
    """Whether its end was reported before and the server has lost it."""
    slot: Slot = field(default_factory=Slot)
    since: float = field(default_factory=time.monotonic)

    @property
    def attempt(self) -> Path:
        """The folder of this attempt."""
        return self.folder.attempt(self.order.attempt)

    @property
    def log(self) -> Path:
        """What it prints."""
        return supervisor.log_file(self.attempt)


@dataclass(frozen=True)
class JobSettings:
    """What all jobs of an agent get."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables besides a job's token."""
    task_of: TaskOf = commands.order_task
    """The task that is run for an order."""
    grace: float = GRACE
    """Seconds between a request to stop and a kill."""


class JobList:
    """All jobs of an agent. What it knows is in files: another process continues where this one was killed."""

    def __init__(self, root: AgentFolder, target: JobTarget, slots: Slots, settings: JobSettings | None = None) -> None:
        self._root, self._target, self._slots = root, target, slots
        self._settings = settings or JobSettings()
        self._jobs: dict[int, AgentJob] = {}

    def adopt(self) -> list[JobOrder]:
        """Take over the jobs of an earlier process of this agent, also those that it only accepted."""
        for folder, order in self._root.unconfirmed():
            self._start(AgentJob(folder, order))
        return [job.order for job in self._jobs.values()]

    def take(self, order: JobOrder) -> None:
        """Start a job. An order that it has already changes nothing."""
        current = self._jobs.get(order.job)
        if current is not None and current.order.attempt >= order.attempt:
            return
        self.drop(order.job)
        job = AgentJob(self._root.job(order.key), order)
        self._jobs[order.job] = job
        if job.folder.confirmed_file(order.attempt).exists():
            job.reason, job.forgotten = "its end was reported before, and the server has lost it", True
            return
        try:
            job.folder.accept(order)
        except _FAULTS as error:
            job.reason = str(error)
        else:
            self._start(job)

    def held(self) -> list[HeldJob]:
        """The jobs it has, for the server to compare."""
        return [HeldJob(job=job.order.job, attempt=job.order.attempt) for job in self._jobs.values()]

    def cancel(self, number: int) -> None:
        """Ask a job to end. The caller repeats this until the job has ended."""
        job = self._jobs.get(number)
        if job is None:
            return
        if job.launched is not None:
            self._watcher(job).stop(job.launched)
        elif job.busy:
            self._kill(job)
            job.busy, job.cancelled, job.reason = False, True, "cancelled before it was submitted"

    def drop(self, number: int, attempt: int | None = None) -> bool:
        """End a job, or this attempt at it, that is no longer this agent's; whether the agent had it."""
        job = self._jobs.get(number)
        if job is None or attempt not in (None, job.order.attempt):
            return False
        self._kill(job)
        self._forget(job)
        return True

    def confirm(self, number: int, attempt: int) -> None:
        """Note that the server knows how an attempt ended; a later attempt may have started since."""
        job = self._jobs.get(number)
        if job is not None and job.order.attempt == attempt:
            self._forget(job)

    def results(self) -> Iterator[tuple[AgentJob, JobResult]]:
        """The state of every job now."""
        for job in list(self._jobs.values()):
            result = self._result(job)
            if result is not None:
                yield job, result

    def __len__(self) -> int:
        return len(self._jobs)

    def _watcher(self, job: AgentJob) -> Launcher:
        return self._target.watcher(job.order.resources)

    def _start(self, job: AgentJob) -> None:
        self._jobs[job.order.job] = job
        job.since, job.busy = time.monotonic(), False
        try:
            task, job.slot = self._prepared(job)
            job.launched = self._target.launcher(job.order.resources).start(
                task,
                folder=job.attempt,
                slot=job.slot if self._target.local else None,
                supervision=self._supervision(job),
            )
        except SchedulerBusyError as error:
            job.reason, job.busy = str(error), True
        except _FAULTS as error:
            job.reason = str(error)

    def _prepared(self, job: AgentJob) -> tuple[Task, Slot]:
        """The task and the slot of a job: those that an earlier process of this agent chose, or new ones."""
        if supervisor.process_file(job.attempt).exists():
            return read_task(task_file(job.attempt)), _slot_of(ProcessSpec.read(job.attempt))
        slot = Slot()
        if self._target.local:
            others = [other.slot for other in self._jobs.values() if other is not job]
            slot = free_slot(job.order.resources, self._slots, others)
        return self._settings.task_of(job.order, self._root), slot

    def _supervision(self, job: AgentJob) -> Supervision:
        resources, folders = job.order.resources, []
        if self._target.uses_image(resources):
            folders = mounted_folders(self._root.path, *commands.named_paths(job.order))
        return Supervision(
            environment={**self._settings.environment, "CLEW_TOKEN": job.order.token},
            working_folder=str(job.folder.path),
            wall_time=resources.wall_time,
            memory=resources.total_memory,
            grace=self._settings.grace,
            folders=folders,
        )

    def _kill(self, job: AgentJob) -> None:
        if job.launched is not None or job.busy:
            launcher = self._watcher(job)
            launcher.kill(job.launched or LaunchedJob("", "", str(job.attempt.absolute())))

    def _result(self, job: AgentJob) -> JobResult | None:
        attempt = job.order.attempt
        if job.forgotten:
            return JobResult(attempt=attempt, state="lost", reason=job.reason)
        if job.busy:
            if time.monotonic() - job.since > _RETRY_PAUSE:
                self._start(job)
            if job.busy:
                return JobResult(attempt=attempt, state="queued", reason=job.reason[:1000])
        if job.launched is None:
            code = CANCELLED if job.cancelled else 2
            return JobResult(attempt=attempt, state="ended", code=code, reason=job.reason[:1000])
        return self._launched_result(job, job.launched)

    def _launched_result(self, job: AgentJob, launched: LaunchedJob) -> JobResult | None:
        launcher, attempt = self._watcher(job), job.order.attempt
        state = launcher.state(launched)
        if state in END_STATES:
            return self._ended(job, launcher, launched)
        if state == "running":
            return JobResult(attempt=attempt, state="running")
        if not self._target.local:
            site = self._target.site.name if self._target.site else ""
            reason = f"at {site}: job {launched.id}, waiting {launcher.explain(launched)}".rstrip()
            return JobResult(attempt=attempt, state="queued", reason=reason[:1000])
        if time.monotonic() - job.since > _START_PATIENCE:
            reason = f"it did not start: {last_message(job.log)}"
            return JobResult(attempt=attempt, state="lost", reason=reason[:1000])
        return None

    def _ended(self, job: AgentJob, launcher: Launcher, launched: LaunchedJob) -> JobResult:
        end, attempt = launcher.end(launched), job.order.attempt
        if end is None:
            reason = launcher.explain(launched) or "it ended without a record"
            launcher.kill(launched)
            return JobResult(attempt=attempt, state="lost", reason=reason[:1000])
        reason = end.reason or ("" if end.code in (0, STOPPED) else _error_of(job))
        return JobResult(
            attempt=attempt,
            state="ended",
            code=end.code,
            reason=reason[:1000],
            began=end.started,
            ended=end.ended,
            memory=end.memory,
        )

    def _forget(self, job: AgentJob) -> None:
        del self._jobs[job.order.job]
        file = job.folder.confirmed_file(job.order.attempt)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def _error_of(job: AgentJob) -> str:
    return failure_message(job.log, job.folder.code, first=job.order.resources.workers > 1)


def _slot_of(spec: ProcessSpec) -> Slot:
    devices = spec.environment.get("CUDA_VISIBLE_DEVICES", "")
    return Slot(spec.cores, tuple(int(number) for number in devices.split(",") if number))
