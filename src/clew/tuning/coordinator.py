"""The loop of a study: ask, execute, report, prune, tell. Several coordinators can share a study."""

from __future__ import annotations

import os
import secrets
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clew.errors import ConfigError, RunError, StoppedError
from clew.tuning.executor import Executor, TaskEnd, TaskReport, TrialTask
from clew.tuning.heartbeat import heartbeat, is_alive
from clew.tuning.proposed_trial import EXTERNAL, CoordinatedStudy, ProposedTrial

_POLL_SECONDS = 0.05
"""Time between two polls while nothing happens."""
_SHORT_TRIAL_SECONDS = 10.0
"""Below this duration the next trial is asked for before a slot is free."""
_PROGRESS_SECONDS = 0.5
"""Time between two calls of `on_progress`."""
TAKE_OVER_SECONDS = 2.0
"""Time between two searches for trials whose coordinator died."""


@dataclass
class _RunningTrial:
    """A trial in progress: its tasks, and the ends of those that ended."""

    proposal: ProposedTrial
    tasks: list[TrialTask]
    ends: dict[int, TaskEnd] = field(default_factory=dict)
    """By index in `tasks`."""


class StudyCoordinator:
    """Assigns trials of a study to an executor until the requested number has ended."""

    def __init__(
        self, study: CoordinatedStudy, executor: Executor, *, on_progress: Callable[[], None] | None = None
    ) -> None:
        self.study, self.executor = study, executor
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.stopping = False
        """Set it (for example in a signal handler) to stop all trials so that they can be resumed."""
        self._on_progress = on_progress or (lambda: None)
        self._running: dict[int, _RunningTrial] = {}
        self._queue: list[TrialTask] = []
        self._failures, self._halted, self._short_trials = 0, False, False
        self._last_heartbeats: dict[str, tuple[float, float]] = {}
        self._next_take_over = self._last_progress = 0.0

    def run(self) -> None:
        """Run until the last trial has ended.

        Raises:
            StoppedError: It was asked to stop. Running trials can be resumed.
            RunError: Too many trials failed in a row.
            ConfigError: The first trial failed for a reason that all others share.
        """
        try:
            with heartbeat(self.study.folder.coordinators / self.name):
                while not self._is_done():
                    self._stop_or_take_over()
                    busy = self._start_tasks()
                    for event in self.executor.poll():
                        busy = True
                        self._start_queued()  # before the event is handled, to keep slots busy
                        self._handle(event)
                    self._report_progress()
                    if not busy and not self._ask_ahead():
                        self.executor.wait(_POLL_SECONDS)
        finally:
            self.executor.close()
        self._report_progress(now=True)
        if self.stopping:
            raise StoppedError(f"stopped; resume with: clew tune run --resume {self.study.folder.path}")

    def _report_progress(self, *, now: bool = False) -> None:
        if now or time.monotonic() - self._last_progress > _PROGRESS_SECONDS:
            self._last_progress = time.monotonic()
            self._on_progress()

    def _is_done(self) -> bool:
        if self._running:
            return False
        if self.stopping:
            return True
        counts = self.study.count()
        if counts["waiting"]:
            return False
        return not counts["running"] or self.study.only_external_owners()

    def _start_tasks(self) -> bool:
        """Start as many tasks as the executor has capacity for. Return whether any was started."""
        busy = False
        while not self.stopping and self.executor.capacity() > 0:
            if not self._queue:
                proposal = self.study.ask(self.name)
                if proposal is None:
                    break
                self._enqueue(proposal)
            busy = self._start_queued()
        return busy

    def _start_queued(self) -> bool:
        """Start queued tasks as long as the executor has capacity. Return whether any was started."""
        before = len(self._queue)
        while self._queue and not self.stopping and self.executor.capacity() > 0:
            self.executor.start(self._queue.pop(0))
        return len(self._queue) < before

    def _ask_ahead(self) -> bool:
        """If trials are short, ask for one before a slot is free. Return whether one was asked for."""
        if not self._short_trials or self._queue or self.stopping:
            return False
        proposal = self.study.ask(self.name)
        self._short_trials = proposal is not None
        if proposal is not None:
            self._enqueue(proposal)
        return proposal is not None

    def _enqueue(self, proposal: ProposedTrial) -> None:
        folds = self.study.config.folds
        numbers = [None] if folds is None else list(range(folds.count))
        tasks = [TrialTask(proposal.number, proposal.values, fold) for fold in numbers]
        self._running[proposal.number] = _RunningTrial(proposal, tasks)
        self._queue.append(tasks[0])  # the other folds follow only if the first is not pruned

    def _handle(self, event: TaskReport | TaskEnd) -> None:
        trial = self._running.get(event.task.trial)
        if trial is None:
            return
        if self.study.owner(event.task.trial) != self.name:
            self._leave(trial)
        elif isinstance(event, TaskEnd):
            self._handle_end(trial, event)
        elif (
            self._has_validated_objective
            and len(trial.tasks) == 1
            and self.study.report(event.task.trial, event.step, event.value)
        ):
            self.executor.prune(event.task, f"pruned: {event.value:.6g} after step {event.step}")

    @property
    def _has_validated_objective(self) -> bool:
        return self.study.config.objectives[0].validated is not None

    def _handle_end(self, trial: _RunningTrial, end: TaskEnd) -> None:
        if end.state == "stopped":
            self._leave(trial, keep_tasks=True)
            return
        self._short_trials = end.seconds < _SHORT_TRIAL_SECONDS
        index = trial.tasks.index(end.task)
        trial.ends[index] = end
        has_folds = len(trial.tasks) > 1
        prune = has_folds and end.state == "complete" and self._should_prune(trial, index, end)
        if end.state != "complete" or prune or len(trial.ends) == len(trial.tasks):
            self._tell(trial, end, prune=prune)
        elif len(trial.ends) == 1:
            self._queue += trial.tasks[1:]

    def _should_prune(self, trial: _RunningTrial, index: int, end: TaskEnd) -> bool:
        return self._has_validated_objective and self.study.report(trial.proposal.number, index + 1, end.values[0])

    def _tell(self, trial: _RunningTrial, last: TaskEnd, *, prune: bool) -> None:
        self._leave(trial)
        ends = list(trial.ends.values())
        facts: dict[str, Any] = {
            "seconds": round(sum(end.seconds for end in ends), 3),
            "cpu": round(sum(end.cpu for end in ends), 3),
            "attempts": max(end.attempts for end in ends),
            "started": min(end.started for end in ends),
        }
        number, all_folds = trial.proposal.number, len(ends) == len(trial.tasks)
        if last.state == "complete" and (all_folds or not prune):
            columns = list(zip(*(end.values for end in ends), strict=True))
            spread = [statistics.stdev(column) for column in columns] if len(ends) > 1 else []
            self.study.tell(number, [statistics.fmean(column) for column in columns], spread=spread, **facts)
            self._failures = 0
        elif last.state == "failed":
            self.study.tell(number, state="failed", reason=last.reason, **facts)
            self._count_failure(last)
        else:
            reason = last.reason or f"pruned: {last.values[0]:.6g} in fold {last.task.fold}"
            self.study.tell(number, state="pruned", reason=reason, **facts)
            self._failures = 0

    def _count_failure(self, end: TaskEnd) -> None:
        self._failures += 1
        if end.systematic and not self.study.count()["complete"]:
            self.halt()
            raise ConfigError(end.reason)
        if self._failures >= self.study.config.failures:
            self.halt()
            raise RunError(f"trials failed in a row: {self._failures}; the last one: {end.reason}")

    def halt(self) -> None:
        """Stop all trials so that they can be resumed."""
        self.stopping = self._halted = True
        for task in self._queue:
            self._running.pop(task.trial, None)
        self._queue.clear()
        self.executor.stop()

    def _leave(self, trial: _RunningTrial, *, keep_tasks: bool = False) -> None:
        """Forget a trial that ended or has another owner."""
        del self._running[trial.proposal.number]
        self._queue = [task for task in self._queue if task.trial != trial.proposal.number]
        for index, task in enumerate(trial.tasks):
            if index not in trial.ends and not keep_tasks:
                self.executor.drop(task)

    def _stop_or_take_over(self) -> None:
        """Stop if requested. From time to time, take over the trials of coordinators that died."""
        if self.stopping:
            if not self._halted:
                self.halt()
            return
        if time.monotonic() < self._next_take_over:
            return
        self._next_take_over = time.monotonic() + TAKE_OVER_SECONDS
        for proposal in self.study.take_over(self.name, self._is_owner_alive):
            if proposal.number not in self._running:
                self._enqueue(proposal)

    def _is_owner_alive(self, owner: str) -> bool:
        """Return whether an owner is alive. External programs count as alive: their time limit decides."""
        if owner == self.name or owner.startswith(EXTERNAL):
            return True
        file = self.study.folder.coordinators / owner
        return is_alive(file, self._last_heartbeats, self.study.config.lease_seconds)
