"""Steps that are recorded once and replayed: on an NVIDIA GPU, the CPU then starts many steps with one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from clew.data.dataset.batch import Batch, RaggedTensor
from clew.training.packs.engine import MAX_PLANNED_STEPS, PackEngine, StepLosses, StepPlan
from clew.training.packs.samples import EpochBatches, NumberedBatch, ResidentEpoch, SampleNumbers
from clew.training.packs.step_tables import StepTables

_WARM_UP_STEPS = 3
"""Steps before one is recorded: libraries choose their algorithms in the first ones."""
BLOCK_STEPS = 16
"""Steps that are recorded as one graph, besides single steps."""
BLOCKS_AFTER = 128
"""Steps after which recording a block pays off."""
SHORT_CALL, _LONG_CALL = 0.02, 0.05
"""Seconds that the steps of one call should take: the number of steps is doubled below, and halved above."""


class TrainedSteps(NamedTuple):
    """The losses of some steps, (steps, members), and the numbers of their samples."""

    losses: StepLosses
    numbers: Sequence[SampleNumbers]


class StepRunner(Protocol):
    """Performs steps of an engine."""

    def __call__(self, epoch: EpochBatches, plan: StepPlan, number: int, limit: int) -> TrainedSteps:
        """Perform steps of the plan from this number on: at least one, at most `limit`."""


class ProgramRecorder(Protocol):
    """Records what a device does, so that it can be repeated."""

    def record(self, program: Callable[[], None]) -> Callable[[], None]:
        """Return a function that repeats what `program` does on the device.

        Raises:
            RuntimeError: It cannot be recorded.
        """

    def mark(self) -> Callable[[], Any]:
        """Return a function that waits until everything started so far is done."""


class CudaGraphRecorder:
    """Records CUDA graphs."""

    def record(self, program: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            program()
        replay: Callable[[], None] = graph.replay
        return replay

    def mark(self) -> Callable[[], Any]:
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        wait: Callable[[], Any] = event.synchronize
        return wait


def make_step_runner(engine: PackEngine) -> StepRunner:
    """Return the fastest way to perform steps of an engine on its device."""
    return ReplayedSteps(engine, CudaGraphRecorder()) if engine.device.type == "cuda" else SingleSteps(engine)


class SingleSteps:
    """Performs one step per call."""

    def __init__(self, engine: PackEngine) -> None:
        self._engine = engine

    def __call__(self, epoch: EpochBatches, plan: StepPlan, number: int, limit: int) -> TrainedSteps:
        return self.train_on(epoch.take(), plan, number)

    def train_on(self, batch: NumberedBatch, plan: StepPlan, number: int) -> TrainedSteps:
        """Perform the step with this number on a batch."""
        losses = self._engine.step(batch.batch, plan, number)
        return TrainedSteps(StepLosses(losses.totals.unsqueeze(0), losses.weights.unsqueeze(0)), [batch.numbers])


class ReplayedSteps:
    """Records steps for batches of the usual size, and replays them.

    Batches of another size are trained on with single steps, and so are all batches if recording fails. The CPU is at
    most two calls ahead of the device, so that it notices in time when a member must stop.
    """

    def __init__(self, engine: PackEngine, recorder: ProgramRecorder) -> None:
        self._engine, self._recorder, self._single = engine, recorder, SingleSteps(engine)
        self._tables: StepTables | None = None
        self._recorded: dict[int, Callable[[], None]] = {}
        """Recorded programs by their number of steps."""
        self._warm_up = {1: _WARM_UP_STEPS, BLOCK_STEPS: 1}
        """How often a program runs before it is recorded, by its number of steps."""
        self._steps_done, self._steps_per_call, self._failed = 0, 1, False
        self._wait_for_previous, self._last_call = _no_wait, 0.0

    def __call__(self, epoch: EpochBatches, plan: StepPlan, number: int, limit: int) -> TrainedSteps:
        if self._failed:
            return self._single(epoch, plan, number, limit)
        if isinstance(epoch, ResidentEpoch):
            return self._train_resident(epoch, plan, number, limit)
        return self._train_streamed(epoch, plan, number)

    def _train_resident(self, epoch: ResidentEpoch, plan: StepPlan, number: int, limit: int) -> TrainedSteps:
        numbers = epoch.next_numbers(limit)
        tables = self._tables = self._tables or StepTables(self._engine, epoch.samples, numbers.shape[1])
        if tables.size != numbers.shape[1]:
            return self._single(epoch, plan, number, limit)
        count = min(len(numbers), self._steps_per_call)
        tables.set_samples(tables.begin(plan, number), numbers[:count])
        return TrainedSteps(self._run(tables, count), epoch.skip(count))

    def _train_streamed(self, epoch: EpochBatches, plan: StepPlan, number: int) -> TrainedSteps:
        numbered = epoch.take()
        batch = numbered.batch
        if self._tables is None and _has_plain_columns(batch):
            self._tables = StepTables(self._engine, batch._map(lambda tensor: tensor.clone()), batch.size)
            all_rows = torch.arange(batch.size, device=self._engine.device)
            self._tables.set_samples(0, all_rows.expand(MAX_PLANNED_STEPS, -1))
        tables = self._tables
        if tables is None or tables.size != batch.size or not _has_plain_columns(batch):
            return self._single.train_on(numbered, plan, number)
        _copy_batch(tables.samples, batch)
        tables.begin(plan, number)
        return TrainedSteps(self._run(tables, 1), [numbered.numbers])

    def _run(self, tables: StepTables, count: int) -> StepLosses:
        left = count
        while left:
            block = left >= BLOCK_STEPS and self._steps_done >= BLOCKS_AFTER
            steps = BLOCK_STEPS if block else 1
            self._run_program(tables, steps)
            left -= steps
        self._limit_lead()
        return tables.last_losses(count)

    def _run_program(self, tables: StepTables, steps: int) -> None:
        replay = self._recorded.get(steps)
        if replay is None and not self._warm_up[steps] and not self._failed:
            replay = self._record(tables, steps)
        self._warm_up[steps] = max(self._warm_up[steps] - 1, 0)
        (replay or partial(tables.run, steps))()
        tables.advance(steps)
        self._steps_done += steps

    def _record(self, tables: StepTables, steps: int) -> Callable[[], None] | None:
        try:
            self._recorded[steps] = self._recorder.record(partial(tables.run, steps))
        except RuntimeError:  # a network that reads a number from the device cannot be recorded
            self._failed = True
        return self._recorded.get(steps)

    def _limit_lead(self) -> None:
        """Wait for the previous call, and adapt the number of steps per call to the time it took."""
        wait, self._wait_for_previous = self._wait_for_previous, self._recorder.mark()
        wait()
        now = time.perf_counter()
        seconds, self._last_call = now - self._last_call, now
        if seconds < SHORT_CALL:
            self._steps_per_call = min(2 * self._steps_per_call, MAX_PLANNED_STEPS)
        elif seconds > _LONG_CALL:
            self._steps_per_call = max(self._steps_per_call // 2, 1)


def _no_wait() -> Any:
    return None


def _has_plain_columns(batch: Batch) -> bool:
    return not any(isinstance(column, RaggedTensor) for column in batch.columns.values())


def _copy_batch(target: Batch, batch: Batch) -> None:
    for name, column in target.columns.items():
        _as_tensor(column).copy_(_as_tensor(batch.columns[name]))
    if target.weights is not None and batch.weights is not None:
        target.weights.copy_(batch.weights)


def _as_tensor(column: Any) -> Tensor:
    assert isinstance(column, Tensor)
    return column
