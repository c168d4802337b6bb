"""Steps that ask nobody: what they need stands in tables, in the row that a counter on the device says.

Tensors in, tensors out, and no number that the processor would have to give or be told: on a device such a program is
recorded once and replayed (`replay`), anywhere it is what `PackEngine.step` does, step for step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clew.data.dataset.batch import Batch
from clew.training.packs.engine import AHEAD, PackEngine, Plan, Told


class Course:
    """Up to `AHEAD` steps of batches of one size, which are rows of `whole`."""

    def __init__(self, engine: PackEngine, whole: Batch, size: int) -> None:
        self.whole, self.size = whole, size
        self._engine, self._plan = engine, Plan(-AHEAD, torch.empty(0), None)
        models, weights, device = len(engine.stack), engine.stack.weights, engine.device
        self._order = torch.zeros((AHEAD, size), dtype=torch.int64, device=device)
        self._scalars = weights.new_zeros((AHEAD, 4, models))
        self._keys = engine.stack.key.new_zeros((AHEAD, *engine.stack.key.shape))
        self._totals, self._weights = weights.new_zeros((AHEAD, models)), weights.new_zeros((AHEAD, models))
        self._row = torch.zeros(1, dtype=torch.int64, device=device)
        self._far = torch.arange(AHEAD, device=device)
        self._at = 0
        """The counter, as far as the processor knows it."""

    def begin(self, plan: Plan, number: int) -> int:
        """The next step is the one with this number; the row it is in."""
        if plan is not self._plan:
            self._plan, count = plan, len(plan.scalars)
            self._scalars[:count].copy_(plan.scalars)
            if plan.keys is not None:
                self._keys[:count].copy_(plan.keys)
        row = number - plan.first
        if row != self._at:
            self._row.fill_(row)
            self._at = row
        return row

    def order(self, row: int, numbers: Tensor) -> None:
        """The samples (steps, size) of the steps from a row on."""
        self._order[row : row + len(numbers)].copy_(numbers)

    def work(self, steps: int) -> None:
        """So many steps. The first step of a training is not like the others (see `Rows`): do not record that one."""
        engine, rows = self._engine, self._row + self._far[:steps]
        numbers = self._order.index_select(0, rows).view(-1)
        samples = self.whole._map(lambda column: column.index_select(0, numbers))
        scalars = self._scalars.index_select(0, rows)
        keys = self._keys.index_select(0, rows) if engine.stack.dropouts else None
        told = []
        for place in range(steps):
            engine.optimizer.step = self._plan.first + self._at + place + 1
            if keys is not None:
                engine.stack.key.copy_(keys[place])
            told.append(engine.learn(self._cut(samples, place), scalars[place]))
        self._totals.index_copy_(0, rows, torch.stack([each.totals for each in told]))
        self._weights.index_copy_(0, rows, torch.stack([each.weights for each in told]))
        self._row.add_(steps)

    def _cut(self, samples: Batch, place: int) -> Batch:
        batch = samples._map(lambda column: column.narrow(0, place * self.size, self.size))
        batch.size = self.size
        return batch

    def passed(self, steps: int) -> None:
        """So many were ordered."""
        self._at += steps

    def told(self, steps: int) -> Told:
        """What the last so many told."""
        first = self._at - steps
        return Told(self._totals[first : self._at].clone(), self._weights[first : self._at].clone())
