"""Forward and backward recorded once as a CUDA graph and replayed: one launch per step instead of hundreds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clew.data.dataset.batch import Batch
from clew.training.config import TrainConfig
from clew.training.strategies import LossSum, Strategy

_MAX_RECORDINGS = 8
"""Each recording holds a batch and a gradient of its own."""
_Key = tuple[tuple[int, bool], tuple[int, ...]]


def can_record(config: TrainConfig, strategy: Strategy, device: torch.device) -> bool:
    """Whether the steps of this training may be recorded, if the recipe supports it."""
    single = type(strategy) is Strategy and config.accumulate == 1
    return config.record and single and device.type == "cuda" and config.precision != "fp16"


class StepRecorder:
    """Runs forward and backward from recordings, one for every capacity (`Recipe.graph_capacity`) of a batch.

    The first batch of a capacity is computed without a recording, but padded to the capacity: libraries select
    algorithms, and kernels are compiled. The second one is recorded. If recording fails, a warning is given once, and
    all steps are computed without recordings.
    """

    def __init__(self, compute: Callable[[Batch], dict[str, LossSum]], parameters: Sequence[nn.Parameter]) -> None:
        """Prepare for recordings.

        Args:
            compute: Runs forward and backward, and leaves gradients in `parameters`.
            parameters: The parameters.
        """
        self._compute, self._parameters = compute, parameters
        self._recordings: dict[_Key, _Recording] = {}
        self._pool: Any = None
        self._failed = False

    def run(self, batch: Batch) -> dict[str, LossSum]:
        """Return the losses of a batch, and leave its gradients in the parameters."""
        recording = None if self._failed else self._recording_for(batch)
        if recording is None:
            return self._compute(batch)
        recording.batch.fill(batch)
        if recording.used and recording.graph is None:
            self._record(recording)
        recording.used = True
        return self._compute(recording.batch) if recording.graph is None else recording.replay(self._parameters)

    def _recording_for(self, batch: Batch) -> _Recording | None:
        """Return the recording of the batch's capacity.

        If there are already many, return the smallest one into which the batch fits, or replace the largest one.
        """
        assert batch.capacity is not None
        kind, capacity = (batch.size, batch.weights is None), tuple(batch.capacity.values())
        if (kind, capacity) not in self._recordings and len(self._recordings) >= _MAX_RECORDINGS:
            same_kind = [key for key in self._recordings if key[0] == kind]
            fitting = [key for key in same_kind if all(a >= b for a, b in zip(key[1], capacity, strict=True))]
            if fitting:
                return self._recordings[min(fitting, key=lambda key: sum(key[1]))]
            if not same_kind:
                return None
            del self._recordings[max(same_kind, key=lambda key: sum(key[1]))]
        if (kind, capacity) not in self._recordings:
            self._recordings[kind, capacity] = _Recording(batch.empty_with_capacity())
        return self._recordings[kind, capacity]

    def _record(self, recording: _Recording) -> None:
        try:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # another thread may be sending the next batch: its calls must not end the recording
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                recording.sums = self._compute(recording.batch)
        except RuntimeError as error:
            self._failed, self._recordings = True, {}
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"steps cannot be recorded ({reason}) and are computed without: see Recipe.graph_capacity", stacklevel=2
            )
            return
        recording.graph, recording.gradients = graph, [parameter.grad for parameter in self._parameters]


class _Recording:
    """A batch at a fixed place in memory, and the CUDA graph that was recorded for it."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.used = batch, False
        self.graph: torch.cuda.CUDAGraph | None = None
        self.sums: dict[str, LossSum] = {}
        self.gradients: list[Tensor | None] = []

    def replay(self, parameters: Sequence[nn.Parameter]) -> dict[str, LossSum]:
        assert self.graph is not None
        self.graph.replay()
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return {name: LossSum(*(_copy(value) for value in sums)) for name, sums in self.sums.items()}


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
