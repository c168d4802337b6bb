"""The contract of an executor: something that does the trials a coordinator hands to it.

`job_executor.Jobs` starts one job per piece; `function_executor.Inline` calls a function. One that trains a
pack of trials in one process collects what `start` gives it and begins at the next `poll`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from clew.tuning.folder import run_name


@dataclass(frozen=True)
class TrialTask:
    """One run to be done: a trial, or a fold of it."""

    trial: int
    values: Mapping[str, Any]
    """By key of the settings."""
    fold: int | None = None

    @property
    def name(self) -> str:
        """What its run is called."""
        return run_name(self.trial, self.fold)


@dataclass(frozen=True)
class TaskReport:
    """The first objective of a piece after a step, counted from 1."""

    piece: TrialTask
    step: int
    value: float


@dataclass(frozen=True)
class TaskEnd:
    """How a piece ended; `stopped` can be gone on with, by whoever takes it over."""

    piece: TrialTask
    state: Literal["complete", "pruned", "failed", "stopped"]
    values: tuple[float, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    cpu: float = 0.0
    attempts: int = 1
    begun: float = 0.0
    """Seconds since 1970; 0 where that is not known."""
    always: bool = False
    """Whether every other piece would fail likewise, as far as can be seen."""


class Executor(Protocol):
    """Does pieces and tells how they fare. It decides nothing: what is pruned, and what counts, the study says."""

    def room(self) -> int:
        """How many more pieces it would begin now."""

    def start(self, piece: TrialTask) -> None:
        """Take a piece on. One that was begun before, here or elsewhere, is gone on with. Never waits for it."""

    def poll(self) -> Iterable[TaskReport | TaskEnd]:
        """What has happened since the last time. Every piece taken on ends once, unless it is dropped."""

    def rest(self, seconds: float) -> None:
        """Wait until a piece may have ended, at most so long."""

    def prune(self, piece: TrialTask, why: str) -> None:
        """Stop a piece on all its ranks at the same step; its end comes with a later `poll`."""

    def drop(self, piece: TrialTask) -> None:
        """Forget a piece that another took over."""

    def stop(self) -> None:
        """Have everything stop, ready to be gone on with; the ends come with later calls of `poll`."""

    def close(self) -> None:
        """Let go of what was held for future pieces. What still runs goes on running."""
