"""Forward and backward recorded once as CUDA graphs and replayed: few launches per step instead of hundreds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

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
    plain = config.accumulate == 1 and config.precision != "fp16"
    return plain and device.type == "cuda" and strategy.can_record(config.record)


class StepRecorder:
    """Runs forward and backward from recordings, one for every capacity (`Recipe.graph_capacity`) of a batch.

    A step has one part, or several if it alternates between optimisers: each part is a CUDA graph, and the optimiser of
    a part steps before the next one. The first batch of a capacity is computed without a recording, but padded to the
    capacity: libraries select algorithms, and kernels are compiled. The second one is recorded. If recording fails, a
    warning is given once, and all steps are computed without recordings.
    """

    def __init__(
        self, compute: Callable[[Batch], Iterator[dict[str, LossSum]]], parameters: Sequence[nn.Parameter]
    ) -> None:
        """Prepare for recordings.

        Args:
            compute: Runs forward and backward of each part of a step, leaves gradients in `parameters`, and yields the
                losses of the part.
            parameters: The parameters.
        """
        self._compute, self._parameters = compute, parameters
        self.recordings: dict[_Key, _Recording] = {}
        self._pool: Any = None
        self._failed = False

    def run(self, batch: Batch) -> Iterator[dict[str, LossSum]]:
        """Yield the losses of each part of a step, with the gradients of the part in the parameters."""
        recording = None if self._failed else self._recording_for(batch)
        if recording is None:
            yield from self._compute(batch)
            return
        recording.batch.fill(batch)
        if recording.graphs:
            yield from recording.replay(self._parameters)
        elif recording.parts:
            yield from self.record_step(recording)
        else:
            for sums in self._compute(recording.batch):
                recording.parts += 1
                yield sums

    def _recording_for(self, batch: Batch) -> _Recording | None:
        """Return the recording of the batch's capacity.

        If there are already many, return the smallest one into which the batch fits, or replace the largest one.
        """
        assert batch.capacity is not None
        kind, capacity = (batch.size, batch.weights is None), tuple(batch.capacity.values())
        if (kind, capacity) not in self.recordings and len(self.recordings) >= _MAX_RECORDINGS:
            same_kind = [key for key in self.recordings if key[0] == kind]
            fitting = [key for key in same_kind if all(a >= b for a, b in zip(key[1], capacity, strict=True))]
            if fitting:
                return self.recordings[min(fitting, key=lambda key: sum(key[1]))]
            if not same_kind:
                return None
            del self.recordings[max(same_kind, key=lambda key: sum(key[1]))]
        if (kind, capacity) not in self.recordings:
            self.recordings[kind, capacity] = _Recording(batch.empty_with_capacity())
        return self.recordings[kind, capacity]

    def record_step(self, recording: _Recording) -> Iterator[dict[str, LossSum]]:
        """Record a step, part by part, and replay each part at once: recording computes nothing."""
        parts = self._compute(recording.batch)
        graphs: list[RecordedGraph] = []
        while len(graphs) < recording.parts:
            try:
                graphs.append(self.record_part(parts))
            except RuntimeError as error:
                self._stop_recording(error)
                break
            yield graphs[-1].replay(self._parameters)
        if len(graphs) == recording.parts:
            recording.graphs = graphs
            return
        for number, sums in enumerate(self._compute(recording.batch)):
            if number >= len(graphs):  # the optimisers of the parts before have stepped already
                yield sums

    def record_part(self, parts: Iterator[dict[str, LossSum]]) -> RecordedGraph:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # another thread may be sending the next batch: its calls must not end the recording
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            sums = next(parts)
        return RecordedGraph(graph, sums, [parameter.grad for parameter in self._parameters])

    def _stop_recording(self, error: RuntimeError) -> None:
        self._failed, self.recordings = True, {}
        reason = str(error).splitlines()[0]
        warnings.warn(
            f"steps cannot be recorded ({reason}) and are computed without: see Recipe.graph_capacity", stacklevel=2
        )


class RecordedGraph(NamedTuple):
    """One part of a step as a CUDA graph, and where it leaves losses and gradients."""

    graph: torch.cuda.CUDAGraph
    sums: dict[str, LossSum]
    gradients: list[Tensor | None]

    def replay(self, parameters: Sequence[nn.Parameter]) -> dict[str, LossSum]:
        self.graph.replay()
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return {name: LossSum(*(_copy(value) for value in sums)) for name, sums in self.sums.items()}


class _Recording:
    """A batch at a fixed place in memory, and the CUDA graphs that were recorded for it."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.parts = 0
        """Number of parts of a step, known after the first one."""
        self.graphs: list[RecordedGraph] = []

    def replay(self, parameters: Sequence[nn.Parameter]) -> Iterator[dict[str, LossSum]]:
        return (graph.replay(parameters) for graph in self.graphs)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
