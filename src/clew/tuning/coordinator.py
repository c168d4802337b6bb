"""The study loop: ask, hand out, listen, prune, tell. Any number of coordinators may share a study."""

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
from clew.tuning.study import EXTERNAL, ProposedTrial, Study

_PAUSE = 0.05
"""Seconds between two looks at trials where nothing happens."""
_BRIEF = 10.0
"""Seconds below which a trial is brief: the next is then asked for before there is room for it."""
_SHOW = 0.5
"""Seconds between two times at which those who watch are told."""
_LOOK = 2.0
"""Seconds between two looks for trials that lost their coordinator."""


@dataclass
class _Under:
    """A trial under way: the pieces it has, and how some ended."""

    asked: ProposedTrial
    pieces: list[TrialTask]
    ends: dict[int, TaskEnd] = field(default_factory=dict)
    """By place in `pieces`."""


class StudyCoordinator:
    """Hands trials of a study to an executor until as many as were wanted have ended."""

    def __init__(self, study: Study, executor: Executor, *, shown: Callable[[], None] | None = None) -> None:
        self.study, self.executor = study, executor
        self.me = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.stopping = False
        """Set it (from a signal handler, say) to have everything stop, ready to be gone on with."""
        self._shown = shown or (lambda: None)
        self._under: dict[int, _Under] = {}
        self._queue: list[TrialTask] = []
        self._failed, self._halted, self._brief = 0, False, False
        self._others: dict[str, tuple[float, float]] = {}
        self._looked = self._told = 0.0

    def run(self) -> None:
        """Until the last trial is told.

        Raises:
            StoppedError: it was told to stop; what was under way can be gone on with.
            RunError: too many trials failed one after the other.
            ConfigError: the first has shown that all would.
        """
        try:
            with heartbeat(self.study.folder.coordinators / self.me):
                while not self._over():
                    self._look_round()
                    busy = self._hand_out()
                    for event in self.executor.poll():
                        busy = True
                        self._begin_queued()  # before anything is made of what ended
                        self._heard(event)
                    self._show()
                    if not busy and not self._ask_ahead():
                        self.executor.rest(_PAUSE)
        finally:
            self.executor.close()
        self._show(now=True)
        if self.stopping:
            raise StoppedError(f"stopped; go on with: clew tune run --resume {self.study.folder.path}")

    def _show(self, *, now: bool = False) -> None:
        if now or time.monotonic() - self._told > _SHOW:
            self._told = time.monotonic()
            self._shown()

    def _over(self) -> bool:
        if self._under:
            return False
        if self.stopping:
            return True
        counts = self.study.count()
        if counts["waiting"]:
            return False
        return not counts["running"] or self.study.all_outside()

    def _hand_out(self) -> bool:
        """Begin as many pieces as there is room for; whether there were any."""
        busy = False
        while not self.stopping and self.executor.room() > 0:
            if not self._queue:
                asked = self.study.ask(self.me)
                if asked is None:
                    break
                self._begin(asked)
            busy = self._begin_queued()
        return busy

    def _begin_queued(self) -> bool:
        """Begin pieces that are asked for already, as long as there is room; whether there were any."""
        before = len(self._queue)
        while self._queue and not self.stopping and self.executor.room() > 0:
            self.executor.start(self._queue.pop(0))
        return len(self._queue) < before

    def _ask_ahead(self) -> bool:
        """Where trials are brief, have one ready for the next slot that is free; whether one was asked for now."""
        if not self._brief or self._queue or self.stopping:
            return False
        asked = self.study.ask(self.me)
        self._brief = asked is not None
        if asked is not None:
            self._begin(asked)
        return asked is not None

    def _begin(self, asked: ProposedTrial) -> None:
        folds = self.study.config.folds
        places = [None] if folds is None else list(range(folds.count))
        pieces = [TrialTask(asked.number, asked.values, fold) for fold in places]
        self._under[asked.number] = _Under(asked, pieces)
        self._queue.append(pieces[0])  # the others only if the first is not hopeless

    def _heard(self, event: TaskReport | TaskEnd) -> None:
        trial = self._under.get(event.piece.trial)
        if trial is None:
            return
        if self.study.owner(event.piece.trial) != self.me:
            self._leave(trial)
        elif isinstance(event, TaskEnd):
            self._ended(trial, event)
        elif self._watches and len(trial.pieces) == 1 and self.study.report(event.piece.trial, event.step, event.value):
            self.executor.prune(event.piece, f"pruned: {event.value:.6g} after step {event.step}")

    @property
    def _watches(self) -> bool:
        return self.study.config.objectives[0].validated is not None

    def _ended(self, trial: _Under, end: TaskEnd) -> None:
        if end.state == "stopped":
            self._leave(trial, keep=True)
            return
        self._brief = end.seconds < _BRIEF
        place = trial.pieces.index(end.piece)
        trial.ends[place] = end
        folds = len(trial.pieces) > 1
        hopeless = folds and end.state == "complete" and self._hopeless(trial, place, end)
        if end.state != "complete" or hopeless or len(trial.ends) == len(trial.pieces):
            self._tell(trial, end, hopeless=hopeless)
        elif len(trial.ends) == 1:
            self._queue += trial.pieces[1:]

    def _hopeless(self, trial: _Under, place: int, end: TaskEnd) -> bool:
        return self._watches and self.study.report(trial.asked.number, place + 1, end.values[0])

    def _tell(self, trial: _Under, last: TaskEnd, *, hopeless: bool) -> None:
        self._leave(trial)
        ends = list(trial.ends.values())
        facts: dict[str, Any] = {
            "seconds": round(sum(each.seconds for each in ends), 3),
            "cpu": round(sum(each.cpu for each in ends), 3),
            "attempts": max(each.attempts for each in ends),
            "begun": min(each.begun for each in ends),
        }
        number, whole = trial.asked.number, len(ends) == len(trial.pieces)
        if last.state == "complete" and (whole or not hopeless):
            columns = list(zip(*(each.values for each in ends), strict=True))
            spread = [statistics.stdev(each) for each in columns] if len(ends) > 1 else []
            self.study.tell(number, [statistics.fmean(each) for each in columns], spread=spread, **facts)
            self._failed = 0
        elif last.state == "failed":
            self.study.tell(number, state="failed", reason=last.reason, **facts)
            self._count_failure(last)
        else:
            reason = last.reason or f"pruned: {last.values[0]:.6g} in fold {last.piece.fold}"
            self.study.tell(number, state="pruned", reason=reason, **facts)
            self._failed = 0

    def _count_failure(self, last: TaskEnd) -> None:
        self._failed += 1
        if last.always and not self.study.count()["complete"]:
            self.halt()
            raise ConfigError(last.reason)
        if self._failed >= self.study.config.failures:
            self.halt()
            raise RunError(f"{self._failed} trials failed one after the other; the last: {last.reason}")

    def halt(self) -> None:
        """Have everything stop, ready to be gone on with."""
        self.stopping = self._halted = True
        for piece in self._queue:
            self._under.pop(piece.trial, None)
        self._queue.clear()
        self.executor.stop()

    def _leave(self, trial: _Under, *, keep: bool = False) -> None:
        """What is left of a trial is not ours any more."""
        del self._under[trial.asked.number]
        self._queue = [each for each in self._queue if each.trial != trial.asked.number]
        for place, piece in enumerate(trial.pieces):
            if place not in trial.ends and not keep:
                self.executor.drop(piece)

    def _look_round(self) -> None:
        """Every now and then: take over what dead coordinators had. At once: stop where that is wanted."""
        if self.stopping:
            if not self._halted:
                self.halt()
            return
        if time.monotonic() < self._looked:
            return
        self._looked = time.monotonic() + _LOOK
        for asked in self.study.take_over(self.me, self._lives):
            if asked.number not in self._under:
                self._begin(asked)

    def _lives(self, owner: str) -> bool:
        """Whether a coordinator gives signs of life; whoever asks from outside is waited for."""
        if owner == self.me or owner.startswith(EXTERNAL):
            return True
        return is_alive(self.study.folder.coordinators / owner, self._others, self.study.config.lease_seconds)
