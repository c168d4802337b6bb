"""Steps recorded once and replayed: on an NVIDIA device the processor then gives one order for many steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from clew.data.dataset.batch import Batch, RaggedTensor
from clew.training.packs.engine import AHEAD, PackEngine, Plan, Told
from clew.training.packs.samples import Epoch, Numbers, Portion, Resident
from clew.training.packs.step_tables import Course

_WARM = 3
"""Steps done before one is recorded: libraries choose their ways in the first ones."""
_MANY = 16
"""Steps that are recorded as one, besides single ones."""
_SETTLED = 128
"""Steps after which that is worth its while."""
_BRISK, _SLOW = 0.02, 0.05
"""Seconds that the steps of one call should take."""


class Learned(NamedTuple):
    """What some steps told, (steps, models), and the numbers of their samples."""

    told: Told
    numbers: Sequence[Numbers]


class Learn(Protocol):
    """Does steps of an engine."""

    def __call__(self, epoch: Epoch, plan: Plan, number: int, most: int) -> Learned:
        """Those from this number on, which are in the plan: at least one and `most` at most."""


class Recorder(Protocol):
    """What a device can do with a program."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """What does it again.

        Raises:
            RuntimeError: it cannot be recorded.
        """

    def mark(self) -> Callable[[], Any]:
        """What waits until all is done that was ordered so far."""


class Cuda:
    """Graphs of CUDA."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        replay: Callable[[], None] = graph.replay
        return replay

    def mark(self) -> Callable[[], Any]:
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        waits: Callable[[], Any] = event.synchronize
        return waits


def replayed(engine: PackEngine) -> Learn:
    """What does steps of an engine, in the best way its device has."""
    return Replay(engine, Cuda()) if engine.device.type == "cuda" else Singly(engine)


class Singly:
    """One step after the other, as the processor orders it."""

    def __init__(self, engine: PackEngine) -> None:
        self._engine = engine

    def __call__(self, epoch: Epoch, plan: Plan, number: int, most: int) -> Learned:
        return self.learn(epoch.take(), plan, number)

    def learn(self, portion: Portion, plan: Plan, number: int) -> Learned:
        """From one batch."""
        told = self._engine.step(portion.batch, plan, number)
        return Learned(Told(told.totals.unsqueeze(0), told.weights.unsqueeze(0)), [portion.numbers])


class Replay:
    """Steps of an engine, recorded for the usual size of a batch. Others are done singly, and so are all where they
    cannot be recorded. The processor is two calls ahead of the device at most, so that it hears in time who is to stop.
    """

    def __init__(self, engine: PackEngine, recorder: Recorder) -> None:
        self._engine, self._recorder, self._singly = engine, recorder, Singly(engine)
        self._course: Course | None = None
        self._recorded: dict[int, Callable[[], None]] = {}
        self._warm = {1: _WARM, _MANY: 1}
        self._seen, self._pace, self._failed = 0, 1, False
        self._before, self._since = _nothing, 0.0

    def __call__(self, epoch: Epoch, plan: Plan, number: int, most: int) -> Learned:
        if self._failed:
            return self._singly(epoch, plan, number, most)
        if isinstance(epoch, Resident):
            return self._resident(epoch, plan, number, most)
        return self._streamed(epoch, plan, number)

    def _resident(self, epoch: Resident, plan: Plan, number: int, most: int) -> Learned:
        coming = epoch.ahead(most)
        course = self._course = self._course or Course(self._engine, epoch.whole, coming.shape[1])
        if course.size != coming.shape[1]:
            return self._singly(epoch, plan, number, most)
        count = min(len(coming), self._pace)
        course.order(course.begin(plan, number), coming[:count])
        return Learned(self._do(course, count), epoch.skip(count))

    def _streamed(self, epoch: Epoch, plan: Plan, number: int) -> Learned:
        portion = epoch.take()
        batch = portion.batch
        if self._course is None and _flat(batch):
            self._course = Course(self._engine, batch._map(lambda tensor: tensor.clone()), batch.size)
            every = torch.arange(batch.size, device=self._engine.device)
            self._course.order(0, every.expand(AHEAD, -1))
        course = self._course
        if course is None or course.size != batch.size or not _flat(batch):
            return self._singly.learn(portion, plan, number)
        _copy(course.whole, batch)
        course.begin(plan, number)
        return Learned(self._do(course, 1), [portion.numbers])

    def _do(self, course: Course, count: int) -> Told:
        left = count
        while left:
            some = _MANY if left >= _MANY and self._seen >= _SETTLED else 1
            self._some(course, some)
            left -= some
        self._keep_pace()
        return course.told(count)

    def _some(self, course: Course, steps: int) -> None:
        again = self._recorded.get(steps)
        if again is None and not self._warm[steps] and not self._failed:
            again = self._record(course, steps)
        self._warm[steps] = max(self._warm[steps] - 1, 0)
        (again or partial(course.work, steps))()
        course.passed(steps)
        self._seen += steps

    def _record(self, course: Course, steps: int) -> Callable[[], None] | None:
        try:
            self._recorded[steps] = self._recorder.record(partial(course.work, steps))
        except RuntimeError:  # a network that asks the device for a number cannot be recorded
            self._failed = True
        return self._recorded.get(steps)

    def _keep_pace(self) -> None:
        before, self._before = self._before, self._recorder.mark()
        before()
        now = time.perf_counter()
        took, self._since = now - self._since, now
        if took < _BRISK:
            self._pace = min(2 * self._pace, AHEAD)
        elif took > _SLOW:
            self._pace = max(self._pace // 2, 1)


def _nothing() -> Any:
    return None


def _flat(batch: Batch) -> bool:
    return not any(isinstance(column, RaggedTensor) for column in batch.columns.values())


def _copy(into: Batch, batch: Batch) -> None:
    for name, column in into.columns.items():
        _tensor(column).copy_(_tensor(batch.columns[name]))
    if into.weights is not None and batch.weights is not None:
        into.weights.copy_(batch.weights)


def _tensor(column: Any) -> Tensor:
    assert isinstance(column, Tensor)
    return column
