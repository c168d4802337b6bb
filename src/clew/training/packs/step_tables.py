"""Steps that need no value from the CPU: everything they use is in tables on the device, at the row of a counter.

Such steps use tensors only, so a GPU can record them once and replay them (`graph_replay.py`). They compute exactly
what `PackEngine.step` computes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clew.data.dataset.batch import Batch
from clew.training.packs.engine import MAX_PLANNED_STEPS, PackEngine, StepLosses, StepPlan


class StepTables:
    """The tables of up to `MAX_PLANNED_STEPS` steps with batches of one size, which are rows of `samples`."""

    def __init__(self, engine: PackEngine, samples: Batch, size: int) -> None:
        self.samples, self.size = samples, size
        self._engine, self._plan = engine, StepPlan(-MAX_PLANNED_STEPS, torch.empty(0), None)
        rows, members = MAX_PLANNED_STEPS, len(engine.stack)
        weights, device = engine.stack.weights, engine.device
        self._sample_rows = torch.zeros((rows, size), dtype=torch.int64, device=device)
        self._scalars = weights.new_zeros((rows, 4, members))
        self._keys = engine.stack.key.new_zeros((rows, *engine.stack.key.shape))
        self._totals, self._weights = weights.new_zeros((rows, members)), weights.new_zeros((rows, members))
        self._counter = torch.zeros(1, dtype=torch.int64, device=device)
        """The row of the next step, on the device."""
        self._offsets = torch.arange(rows, device=device)
        self._row = 0
        """The row of the next step, as the CPU counts it."""

    def begin(self, plan: StepPlan, number: int) -> int:
        """Prepare the step with this number as the next one, and return its row."""
        if plan is not self._plan:
            self._plan, count = plan, len(plan.scalars)
            self._scalars[:count].copy_(plan.scalars)
            if plan.keys is not None:
                self._keys[:count].copy_(plan.keys)
        row = number - plan.first
        if row != self._row:
            self._counter.fill_(row)
            self._row = row
        return row

    def set_samples(self, row: int, numbers: Tensor) -> None:
        """Set the sample numbers, (steps, size), of the steps from a row on."""
        self._sample_rows[row : row + len(numbers)].copy_(numbers)

    def run(self, steps: int) -> None:
        """Perform steps. The first step of a training differs (see `PackOptimizer`): do not record that one."""
        engine, rows = self._engine, self._counter + self._offsets[:steps]
        numbers = self._sample_rows.index_select(0, rows).view(-1)
        samples = self.samples._map(lambda column: column.index_select(0, numbers))
        scalars = self._scalars.index_select(0, rows)
        keys = self._keys.index_select(0, rows) if engine.stack.dropouts else None
        losses = []
        for place in range(steps):
            engine.optimizer.step = self._plan.first + self._row + place + 1
            if keys is not None:
                engine.stack.key.copy_(keys[place])
            losses.append(engine.train_on(self._batch(samples, place), scalars[place]))
        self._totals.index_copy_(0, rows, torch.stack([step.totals for step in losses]))
        self._weights.index_copy_(0, rows, torch.stack([step.weights for step in losses]))
        self._counter.add_(steps)

    def _batch(self, samples: Batch, place: int) -> Batch:
        batch = samples._map(lambda column: column.narrow(0, place * self.size, self.size))
        batch.size = self.size
        return batch

    def advance(self, steps: int) -> None:
        """Count steps that were started."""
        self._row += steps

    def last_losses(self, steps: int) -> StepLosses:
        """Return the losses of the last steps, (steps, members)."""
        first = self._row - steps
        return StepLosses(self._totals[first : self._row].clone(), self._weights[first : self._row].clone())
