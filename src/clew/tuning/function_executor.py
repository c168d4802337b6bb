"""Trials as calls of a function in this process: for fast objectives, or objectives that are not runs of clew."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from clew.tuning.executor import TaskEnd, TaskReport, TrialTask


class FunctionExecutor:
    """Calls `function(values)` for one task after the other.

    Args:
        function: Returns the objective, a list of objectives, or yields the objective after every step. A trial whose
            function yields can be pruned between two steps.
    """

    def __init__(self, function: Callable[[Mapping[str, Any]], Any]) -> None:
        self._function = function
        self._task: TrialTask | None = None
        self._steps: Iterator[float] | None = None
        self._last_value, self._steps_done, self._prune_reason = 0.0, 0, ""
        self._start_times = (0.0, 0.0)

    def capacity(self) -> int:
        return 1 if self._task is None else 0

    def start(self, task: TrialTask) -> None:
        self._task, self._steps, self._steps_done, self._prune_reason = task, None, 0, ""
        self._start_times = time.perf_counter(), time.process_time()

    def poll(self) -> Iterator[TaskReport | TaskEnd]:
        task = self._task
        if task is None:
            return
        try:
            values = self._advance(task)
        except Exception as error:  # a user's function that fails must not end the study
            self._task = None
            yield self._end(task, "failed", (), f"{type(error).__name__}: {error}")
            return
        if values is None:
            yield TaskReport(task, self._steps_done, self._last_value)
            return
        self._task = None
        yield self._end(task, "pruned" if self._prune_reason else "complete", values, self._prune_reason)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def prune(self, task: TrialTask, reason: str) -> None:
        self._prune_reason = reason

    def drop(self, task: TrialTask) -> None:
        self._task = None

    def stop(self) -> None:
        self._task = None

    def close(self) -> None:
        pass

    def _advance(self, task: TrialTask) -> tuple[float, ...] | None:
        """Run the next step. Return the final values, or None if the function yielded an intermediate one."""
        if self._prune_reason:
            return (self._last_value,)
        if self._steps is None:
            result = self._function(task.values)
            if not isinstance(result, Iterator):
                return tuple(result) if isinstance(result, Sequence) else (float(result),)
            self._steps = result
        try:
            self._last_value = float(next(self._steps))
        except StopIteration:
            return (self._last_value,)
        self._steps_done += 1
        return None

    def _end(self, task: TrialTask, state: Any, values: tuple[float, ...], reason: str) -> TaskEnd:
        wall, cpu = self._start_times
        return TaskEnd(task, state, values, reason, time.perf_counter() - wall, time.process_time() - cpu)
