"""A step recorded once and replayed: on an NVIDIA device the processor then gives one order a step instead of fifty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clew.dataset.batch import Batch, RaggedTensor
from clew.train.packed.step import PackEngine, Plan, Told
from clew.train.packed.supply import Portion

_WARM = 3
"""Steps done before one is recorded: libraries choose their ways in the first ones."""


def replayed(engine: PackEngine) -> Callable[[Portion, Plan, int], Told]:
    """What does a step of an engine, in the best way its device has."""

    def plain(portion: Portion, plan: Plan, number: int) -> Told:
        return engine.step(portion.batch, plan, number)

    return Replay(engine).step if engine.device.type == "cuda" else plain


class Replay:
    """Steps of an engine, as graphs of CUDA; one for the usual size of a batch. What cannot be recorded is done
    plainly."""

    def __init__(self, engine: PackEngine) -> None:
        self._engine = engine
        self._graph: Any = None
        self._size, self._seen, self._failed = -1, 0, False

    def step(self, portion: Portion, plan: Plan, number: int) -> Told:
        """Learn from a batch."""
        batch = portion.batch
        if self._graph is not None and batch.size == self._size:
            return self._again(batch, plan, number)
        self._seen += 1
        if self._seen <= _WARM or self._failed or self._graph is not None or not _flat(batch):
            return self._engine.step(batch, plan, number)
        self._record(batch, plan, number)
        if self._graph is None:
            return self._engine.step(batch, plan, number)
        return self._again(batch, plan, number)

    def _record(self, batch: Batch, plan: Plan, number: int) -> None:
        engine = self._engine
        self._batch = batch._map(lambda tensor: tensor.clone())
        self._scalars = plan.scalars[number - plan.first].clone()
        engine.optimizer.step = number + 1
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._told = engine.learn(self._batch, self._scalars)
        except RuntimeError:  # a network that asks the device for a number cannot be recorded
            self._failed = True
            return
        self._graph, self._size = graph, batch.size

    def _again(self, batch: Batch, plan: Plan, number: int) -> Told:
        place = number - plan.first
        for name, column in self._batch.columns.items():
            _tensor(column).copy_(_tensor(batch.columns[name]))
        if self._batch.weights is not None and batch.weights is not None:
            self._batch.weights.copy_(batch.weights)
        self._scalars.copy_(plan.scalars[place])
        if plan.keys is not None:
            self._engine.stack.key.copy_(plan.keys[place])
        self._engine.optimizer.step = number + 1
        self._graph.replay()
        return Told(self._told.totals.clone(), self._told.weights.clone())


def _flat(batch: Batch) -> bool:
    return not any(isinstance(column, RaggedTensor) for column in batch.columns.values())


def _tensor(column: Any) -> Tensor:
    assert isinstance(column, Tensor)
    return column
