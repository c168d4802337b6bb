"""Time per sample of a model's forward pass, for several batch sizes and devices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from clew import figure
from clew.data.dataset.batch import Batch, to_batch
from clew.data.table import Table
from clew.figure import Figure
from clew.inference.model_runner import ModelRunner
from clew.inference.parallel_inference import InferenceTask
from clew.metrics import Mean, Metric
from clew.recipe import Recipe
from clew.training.device import device_or_default

TIMED_SAMPLES = 100
"""Samples from which batches are made, by repetition."""
CPU_PIECE = 500
"""Largest batch on a CPU. A larger one is computed in pieces, which bounds the memory and costs no time there."""
LIMIT_SECONDS = 20.0
"""A batch that would take longer is not measured."""


class BatchTime(NamedTuple):
    """The time of one batch."""

    device: str
    batch: int
    seconds: float | None
    """Seconds per sample; None if it was not measured, because it would take too long or does not fit in memory."""


@dataclass(frozen=True)
class BatchTimes:
    """All times."""

    times: list[BatchTime] = field(default_factory=list)

    def metrics(self) -> dict[str, Metric]:
        """Milliseconds per sample, by device and batch size."""
        return {
            f"time/{each.device}_batch_{each.batch}_ms": Mean(1000 * each.seconds, 1.0)
            for each in self.times
            if each.seconds is not None
        }

    def figures(self, recipe: Recipe) -> dict[str, Figure]:
        """A table of the times, with those that the recipe compares them with."""
        if not self.times:
            return {}
        rows = [(each.device, f"{each.batch:,}", _text(each.seconds)) for each in self.times]
        rows += [(name, "", _text(seconds)) for name, seconds in recipe.reference_times().items()]
        columns = {title: [row[place] for row in rows] for place, title in enumerate(("", "batch", "ms per sample"))}
        return {"times": figure.table(columns, title="Time per sample")}


def measure_batches(task: InferenceTask, samples: Table) -> BatchTimes:
    """Measure the forward pass of a task's model on the CPU, and on the device of the task if that is another one.

    Args:
        task: The model and its recipe, whose `timed_batches` are measured.
        samples: A few samples.
    """
    devices = dict.fromkeys([torch.device("cpu"), device_or_default(0, task.device)])
    return BatchTimes([each for device in devices for each in _device_times(task, samples, device)])


def _device_times(task: InferenceTask, samples: Table, device: torch.device) -> Iterator[BatchTime]:
    engine, per_sample, name = task.engine(device), 0.0, _device_name(device)
    for size in sorted(task.recipe.timed_batches):
        seconds = None
        if per_sample * size < LIMIT_SECONDS:
            seconds = _batch_seconds(engine, samples, size)
            per_sample = seconds / size if seconds else per_sample
        yield BatchTime(name, size, None if seconds is None else seconds / size)


def _batch_seconds(engine: ModelRunner, samples: Table, size: int) -> float | None:
    """Return the shortest time of a few forward passes; None if a batch does not fit in the GPU's memory."""
    piece = min(size, CPU_PIECE) if engine.device.type == "cpu" else size
    rows = np.arange(piece) % len(samples)
    batch = to_batch(samples.take(rows), engine.recipe.columns).to(engine.device)
    try:
        times = [_seconds(engine, batch, -(-size // piece))]
        while len(times) < 5 and sum(times) < LIMIT_SECONDS / 10:
            times.append(_seconds(engine, batch, -(-size // piece)))
    except torch.cuda.OutOfMemoryError:
        return None
    return min(times)


def _seconds(engine: ModelRunner, batch: Batch, repeat: int) -> float:
    _wait(engine.device)
    start = time.perf_counter()
    with torch.no_grad():
        for _ in range(repeat):
            engine.outputs(batch)
    _wait(engine.device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_name(device: torch.device) -> str:
    return "gpu" if device.type == "cuda" else device.type


def _text(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{1000 * seconds:.3g}"
