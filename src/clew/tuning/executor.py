"""The contract of an executor: the part that executes the trials which a coordinator assigns to it.

`job_executor.JobExecutor` starts one job per task, `pack_executor.PackExecutor` trains many tasks in one process, and
`function_executor.FunctionExecutor` calls a function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from clew.tuning.folder import run_name


@dataclass(frozen=True)
class TrialTask:
    """One run to be executed: a trial, or one fold of a trial."""

    trial: int
    values: Mapping[str, Any]
    """Values by key of the settings."""
    fold: int | None = None

    @property
    def name(self) -> str:
        """The name of its run."""
        return run_name(self.trial, self.fold)


@dataclass(frozen=True)
class TaskReport:
    """The first objective of a task after a step, counted from 1."""

    task: TrialTask
    step: int
    value: float


@dataclass(frozen=True)
class TaskEnd:
    """How a task ended. A `stopped` task can be resumed by the next owner of its trial."""

    task: TrialTask
    state: Literal["complete", "pruned", "failed", "stopped"]
    values: tuple[float, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    """Elapsed time."""
    cpu: float = 0.0
    """Processor time, in seconds."""
    attempts: int = 1
    started: float = 0.0
    """Time of the start, in seconds since 1970; 0 if unknown."""
    systematic: bool = False
    """Whether every other task is expected to fail for the same reason."""


class Executor(Protocol):
    """Executes tasks and reports their progress. The study decides what is pruned and what counts."""

    def capacity(self) -> int:
        """Return how many more tasks it can start now."""

    def start(self, task: TrialTask) -> None:
        """Start a task without waiting for it. A task that was started before, on any host, is resumed."""

    def poll(self) -> Iterable[TaskReport | TaskEnd]:
        """Return what happened since the last call. Every started task ends exactly once, unless it is dropped."""

    def wait(self, seconds: float) -> None:
        """Wait until a task may have ended, at most this long."""

    def prune(self, task: TrialTask, reason: str) -> None:
        """Stop a task on all its ranks at the same step. A later `poll` returns its end."""

    def drop(self, task: TrialTask) -> None:
        """Forget a task that has another owner."""

    def stop(self) -> None:
        """Stop all tasks so that they can be resumed. Later calls of `poll` return their ends."""

    def close(self) -> None:
        """Release what is reserved for future tasks. Running tasks continue."""
