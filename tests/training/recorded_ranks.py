"""Run by test_record.py, once per rank: steps of allreduce, from recordings or without.

python -m tests.training.recorded_ranks STORE RANK RECIPE RECORDED OUTPUT

A CPU has no CUDA graphs. What stands for one computes the step anew when it is replayed, from the batch in the memory
of the recording, and writes losses and gradients to the memory of the recording, as a CUDA graph does.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import FileStore

from clew import Table
from clew.data.dataset.batch import Batch, to_batch
from clew.testing.toys import MODELS
from clew.training.config import TrainConfig
from clew.training.engine import Engine
from clew.training.step_recorder import StepRecorder
from clew.training.strategies import LossSum
from clew.training.strategies.allreduce import AllReduce

SIZES = [(6, 6), (6, 6), (6, 6), (6, 6), (5, 7), (6, 0), (6, 6), (4, 6), (6, 6)]
"""Samples of both ranks in each step. A rank without samples gets a batch that does not count."""


class CpuRecorder(StepRecorder):
    """Records parts of a step as functions."""

    replays = 0

    def parts(self, batch: Batch) -> Iterator[dict[str, LossSum]]:
        return iter(self._compute(batch))

    def gradients(self) -> list[Any]:
        return [parameter.grad for parameter in self._parameters]

    def record_step(self, recording: Any) -> Iterator[dict[str, LossSum]]:
        self._recording, self._part = recording, 0
        return super().record_step(recording)

    def record_part(self, parts: Any) -> Any:
        from clew.training.step_recorder import RecordedGraph

        recorded = _Replay(self, self._recording.batch, self._part)
        self._part += 1
        sums = next(parts)
        gradients = [None if gradient is None else gradient.clone() for gradient in self.gradients()]
        recorded.memory = RecordedGraph(recorded, sums, gradients)  # type: ignore[arg-type]
        return recorded.memory


class _Replay:
    memory: Any

    def __init__(self, recorder: CpuRecorder, batch: Batch, part: int) -> None:
        self._recorder, self._batch, self._part = recorder, batch, part

    def replay(self) -> None:
        self._recorder.replays += 1
        sums = next(itertools.islice(self._recorder.parts(self._batch), self._part, None))
        for name, (total, _) in sums.items():
            self.memory.sums[name].total.copy_(total)
        for memory, gradient in zip(self.memory.gradients, self._recorder.gradients(), strict=True):
            if memory is not None and gradient is not None:
                memory.copy_(gradient)


def batches(rank: int) -> Iterator[tuple[Batch, int]]:
    """Yield the batch of this rank in every step, and the samples of all ranks."""
    rng = np.random.default_rng(5)
    for sizes in SIZES:
        x = rng.normal(size=(sum(sizes) + 2, 3)).astype(np.float32)
        first = sum(sizes[:rank])
        own = x[first : first + sizes[rank]] if sizes[rank] else x[-2:]
        batch = to_batch(Table({"x": own, "y": own.sum(1), "number": np.arange(len(own))}))
        batch.capacity, batch.counts = {}, sizes[rank] > 0
        yield batch, sum(sizes)


def main(store: str, rank: int, name: str, recorded: bool, output: str) -> None:
    config = TrainConfig(strategy="allreduce", workers=2, clip=0.5, record="allreduce")
    strategy = AllReduce(rank=rank, ranks=2, store=FileStore(store, 2), device=torch.device("cpu"))
    torch.manual_seed(0)
    recipe = MODELS[name]()
    model = strategy.distribute(recipe.model())
    engine = Engine(recipe, model, config, strategy, torch.device("cpu"))
    recorder = CpuRecorder(engine.forward_backward, list(model.parameters()))
    if recorded:
        engine.recorder = recorder
    losses = []
    for step, (batch, samples) in enumerate(batches(rank)):
        strategy.batch_samples, strategy.command = samples, step if rank == 0 else 0
        losses.append({key: float(sums.total) / float(sums.weight) for key, sums in engine.step([batch]).items()})
        assert strategy.received_signals() == (step, False)
    facts = {"model": model.state_dict(), "losses": losses, "replays": recorder.replays}
    torch.save(facts, Path(output) / f"rank-{rank}.pt")
    strategy.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "True", sys.argv[5])
