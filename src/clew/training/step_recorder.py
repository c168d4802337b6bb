"""Forward and backward recorded once and replayed: a device then gets one order a step instead of hundreds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clew.data.dataset.batch import Batch
from clew.training.config import TrainConfig
from clew.training.strategies import LossSum, Strategy

_MOST = 8
"""Recordings that are kept: each holds a batch and a gradient of its own."""


def can_record(config: TrainConfig, strategy: Strategy, device: torch.device) -> bool:
    """Whether steps of such a training may be recorded, if the recipe's can be."""
    alone = type(strategy) is Strategy and config.accumulate == 1
    return config.record and alone and device.type == "cuda" and config.precision != "fp16"


class StepRecorder:
    """Learns from batches by recordings, one for every room that they need.

    The first batch of a room is computed plainly, but in that room: libraries choose their ways and kernels are
    compiled. The second is recorded, as a CUDA graph. What cannot be recorded stays plain, and that is said once.
    """

    def __init__(self, learn: Callable[[Batch], dict[str, LossSum]], parameters: Sequence[nn.Parameter]) -> None:
        """`learn` leaves gradients in `parameters`."""
        self._learn, self._parameters = learn, parameters
        self._tapes: dict[tuple[tuple[int, bool], tuple[int, ...]], _Tape] = {}
        self._pool: Any = None
        self._fails = False

    def learn(self, batch: Batch) -> dict[str, LossSum]:
        """Losses of a batch, and gradients."""
        tape = None if self._fails else self._tape(batch)
        if tape is None:
            return self._learn(batch)
        tape.batch.fill(batch)
        if tape.used and tape.graph is None:
            self._record(tape)
        tape.used = True
        return self._learn(tape.batch) if tape.graph is None else tape.play(self._parameters)

    def _tape(self, batch: Batch) -> _Tape | None:
        """That of a batch's room; where there are many already, the least that it fits in, or a new one for the
        largest."""
        assert batch.room is not None
        kind, room = (batch.size, batch.weights is None), tuple(batch.room.values())
        if (kind, room) not in self._tapes and len(self._tapes) >= _MOST:
            alike = [key for key in self._tapes if key[0] == kind]
            fitting = [key for key in alike if all(a >= b for a, b in zip(key[1], room, strict=True))]
            if fitting:
                return self._tapes[min(fitting, key=lambda key: sum(key[1]))]
            if not alike:
                return None
            del self._tapes[max(alike, key=lambda key: sum(key[1]))]
        if (kind, room) not in self._tapes:
            self._tapes[kind, room] = _Tape(batch.in_room())
        return self._tapes[kind, room]

    def _record(self, tape: _Tape) -> None:
        try:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # another thread may be sending the next batch: its calls must not end the recording
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                tape.sums = self._learn(tape.batch)
        except RuntimeError as error:
            self._fails, self._tapes = True, {}
            told = str(error).splitlines()[0]
            warnings.warn(
                f"steps cannot be recorded ({told}), and go on without: see Recipe.graph_capacity", stacklevel=2
            )
            return
        tape.graph, tape.gradients = graph, [parameter.grad for parameter in self._parameters]


class _Tape:
    """A batch at a fixed place, and what is recorded of it."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.used = batch, False
        self.graph: torch.cuda.CUDAGraph | None = None
        self.sums: dict[str, LossSum] = {}
        self.gradients: list[Tensor | None] = []

    def play(self, parameters: Sequence[nn.Parameter]) -> dict[str, LossSum]:
        assert self.graph is not None
        self.graph.replay()
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return {name: LossSum(*(_kept(each) for each in found)) for name, found in self.sums.items()}


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
