"""Trials as calls of a function in this process: for objectives that are quick, or that are no runs of clew's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from clew.tuning.executor import TaskEnd, TaskReport, TrialTask


class FunctionExecutor:
    """Calls `function(values)` for one piece after the other. It returns the objective, or a list of them, or yields
    it after every step: then the trial can be pruned between two.
    """

    def __init__(self, function: Callable[[Mapping[str, Any]], Any]) -> None:
        self._function = function
        self._piece: TrialTask | None = None
        self._steps: Iterator[float] | None = None
        self._last, self._done, self._why, self._begun = 0.0, 0, "", (0.0, 0.0)

    def room(self) -> int:
        return 1 if self._piece is None else 0

    def start(self, piece: TrialTask) -> None:
        self._piece, self._steps, self._done, self._why = piece, None, 0, ""
        self._begun = time.perf_counter(), time.process_time()

    def poll(self) -> Iterator[TaskReport | TaskEnd]:
        piece = self._piece
        if piece is None:
            return
        try:
            found = self._step(piece)
        except Exception as error:  # a trial of somebody's own that fails must not end the study
            self._piece = None
            yield self._end(piece, "failed", (), f"{type(error).__name__}: {error}")
            return
        if found is None:
            yield TaskReport(piece, self._done, self._last)
            return
        self._piece = None
        yield self._end(piece, "pruned" if self._why else "complete", found, self._why)

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def prune(self, piece: TrialTask, why: str) -> None:
        self._why = why

    def drop(self, piece: TrialTask) -> None:
        self._piece = None

    def stop(self) -> None:
        self._piece = None

    def close(self) -> None:
        pass

    def _step(self, piece: TrialTask) -> tuple[float, ...] | None:
        """The values once they are there; None after a step on the way to them."""
        if self._why:
            return (self._last,)
        if self._steps is None:
            found = self._function(piece.values)
            if not isinstance(found, Iterator):
                return tuple(found) if isinstance(found, Sequence) else (float(found),)
            self._steps = found
        try:
            self._last = float(next(self._steps))
        except StopIteration:
            return (self._last,)
        self._done += 1
        return None

    def _end(self, piece: TrialTask, state: Any, values: tuple[float, ...], reason: str) -> TaskEnd:
        wall, cpu = self._begun
        return TaskEnd(piece, state, values, reason, time.perf_counter() - wall, time.process_time() - cpu)
