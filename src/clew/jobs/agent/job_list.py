"""The jobs of an agent on its machine: taken, started once, watched, ended. It knows of no server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clew.client.job import HeldJob, JobOrder, JobResult, Slots
from clew.core.log_tail import last_message
from clew.errors import ClewError
from clew.jobs import supervisor
from clew.jobs.agent import commands
from clew.jobs.agent.folder import AgentFolder, JobFolder
from clew.jobs.agent.resource_slots import room
from clew.jobs.agent.runner import Runner
from clew.jobs.launchers.launcher import Slot
from clew.jobs.launchers.local import visible
from clew.jobs.supervisor import GRACE, ProcessSpec

Command = Callable[[JobOrder, AgentFolder], tuple[str, ...]]
_FAULTS = (ClewError, OSError, ValueError, RecursionError)
"""What a job may meet when it is to begin: it fails, and the agent goes on."""
_PATIENCE = 60.0
"""Seconds after which a keeper that has not begun is taken not to come."""


@dataclass
class AgentJob:
    """A job that the server has not heard the end of."""

    folder: JobFolder
    order: JobOrder
    handle: str = ""
    """Empty where it could not be started."""
    reason: str = ""
    """Why not."""
    lost: bool = False
    """Whether it was over before."""
    room: Slot = field(default_factory=Slot)
    since: float = field(default_factory=time.monotonic)

    @property
    def log(self) -> Path:
        """What it prints."""
        return supervisor.log_file(self.folder.attempt(self.order.attempt))


class JobList:
    """All jobs of an agent. What it knows is in files: another process takes over where it was killed."""

    def __init__(
        self,
        root: AgentFolder,
        runner: Runner,
        slots: Slots,
        *,
        environment: Mapping[str, str] | None = None,
        command: Command = commands.command,
        grace: float = GRACE,
    ) -> None:
        """`environment` is what every job gets beside its token."""
        self._root, self._runner, self._slots, self._command, self._grace = root, runner, slots, command, grace
        self._environment = dict(environment or {})
        self._jobs: dict[int, AgentJob] = {}

    def adopt(self) -> list[JobOrder]:
        """Take up what an earlier process of this agent left: those that run, and those it lived only to accept."""
        for folder, order in self._root.known():
            self._begin(AgentJob(folder, order))
        return [each.order for each in self._jobs.values()]

    def take(self, order: JobOrder) -> None:
        """Start a job. An order that it has changes nothing; one whose end the server has forgotten is lost."""
        known = self._jobs.get(order.job)
        if known is not None and known.order.attempt >= order.attempt:
            return
        self.drop(order.job)
        working = AgentJob(self._root.job(order.key), order)
        self._jobs[order.job] = working
        if working.folder.told_file(order.attempt).exists():
            working.reason, working.lost = "its end was told before, and forgotten", True
            return
        try:
            working.folder.accept(order)
        except _FAULTS as error:
            working.reason = str(error)
        else:
            self._begin(working)

    def held(self) -> list[HeldJob]:
        """What it has, for the server to compare."""
        return [HeldJob(job=each.order.job, attempt=each.order.attempt) for each in self._jobs.values()]

    def cancel(self, job: int) -> None:
        """Ask a job to end; to be asked again until it has, as who would hear it may not be there yet."""
        working = self._jobs.get(job)
        if working is not None and working.handle:
            self._runner.cancel(working.handle)

    def drop(self, job: int, attempt: int | None = None) -> bool:
        """End a job, or this attempt at it, that is no longer this agent's, now; whether it was there."""
        working = self._jobs.get(job)
        if working is None or attempt not in (None, working.order.attempt):
            return False
        if working.handle:
            self._runner.kill(working.handle)
        self._forget(working)
        return True

    def told(self, job: int, attempt: int) -> None:
        """The server knows how an attempt ended; a later one may have begun since."""
        working = self._jobs.get(job)
        if working is not None and working.order.attempt == attempt:
            self._forget(working)

    def look(self) -> Iterator[tuple[AgentJob, JobResult]]:
        """How every job is now."""
        for working in list(self._jobs.values()):
            result = self._result(working)
            if result is not None:
                yield working, result

    def __len__(self) -> int:
        return len(self._jobs)

    def _begin(self, working: AgentJob) -> None:
        order, self._jobs[working.order.job] = working.order, working
        attempt = working.folder.attempt(order.attempt)
        file = supervisor.task_file(attempt)
        try:
            task = ProcessSpec.read(file) if file.exists() else self._task(working)
            working.room = Slot(task.cores, _devices(task))
            working.handle = self._runner.start(task, attempt)
        except _FAULTS as error:
            working.reason = str(error)

    def _task(self, working: AgentJob) -> ProcessSpec:
        order = working.order
        others = [each.room for each in self._jobs.values() if each is not working]
        here = room(order.resources, self._slots, others) if self._runner.here else Slot()
        return ProcessSpec(
            command=self._command(order, self._root),
            folder=str(working.folder.path),
            mark=str(working.folder.attempt(order.attempt).absolute()),
            environment={**visible(here), **self._environment, "CLEW_TOKEN": order.token},
            cores=here.cores,
            wall=order.resources.wall,
            memory=order.resources.memory,
            grace=self._grace,
            cpus=order.resources.cpus,
            gpus=order.resources.gpus,
            nodes=order.resources.nodes,
            ranks=commands.ranks(order),
        )

    def _result(self, working: AgentJob) -> JobResult | None:
        attempt = working.order.attempt
        if working.lost:
            return JobResult(attempt=attempt, state="lost", reason=working.reason)
        if not working.handle:
            return JobResult(attempt=attempt, state="ended", code=2, reason=working.reason[:1000])
        status = self._runner.poll(working.handle)
        if status.end is not None:
            end = status.end
            reason = end.reason or ("" if end.code in (0, 75) else last_message(working.log))
            return JobResult(
                attempt=attempt,
                state="ended",
                code=end.code,
                reason=reason[:1000],
                began=end.began,
                ended=end.ended,
                memory=end.memory,
            )
        if status.state == "lost":
            self._runner.kill(working.handle)
            return JobResult(attempt=attempt, state="lost", reason=status.reason or "its keeper was killed")
        if status.state == "queued":
            return JobResult(attempt=attempt, state="queued", reason=status.reason[:1000])
        if status.state == "waiting":
            if time.monotonic() - working.since > _PATIENCE:
                return JobResult(
                    attempt=attempt, state="lost", reason=f"it did not begin: {last_message(working.log)}"[:1000]
                )
            return None
        return JobResult(attempt=attempt, state="running")

    def _forget(self, working: AgentJob) -> None:
        del self._jobs[working.order.job]
        file = working.folder.told_file(working.order.attempt)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def _devices(task: ProcessSpec) -> tuple[int, ...]:
    told = task.environment.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(int(each) for each in told.split(",") if each)
