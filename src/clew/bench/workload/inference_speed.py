"""Measurements of a trained model: how fast it predicts, and whether its outputs depend on device and threads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from clew.bench.workload.config import WorkloadConfig, devices_per_copy, threads_per_copy
from clew.data.dataset import Dataset
from clew.data.dataset.batch import Batch, to_batch
from clew.inference.model_runner import ModelRunner
from clew.recipe import Recipe
from clew.runs import Run
from clew.training import checkpoint
from clew.training.device import find_device
from clew.training.run_recipe import recipe_of_run

_SECONDS = 3.0
"""Shortest duration of the measurement of inference."""
_EVENTS = 8
"""Validation events on which the agreement is measured."""


def inference(run: Run, config: WorkloadConfig) -> dict[str, Any]:
    """Measure the speed of inference, with the batches in memory. The first batch is not counted.

    Returns:
        Events per second and how they were measured. One copy uses the threads of all copies.
    """
    recipe, _ = recipe_of_run(run)
    device = _device(config)
    runner = ModelRunner(recipe, _best_model(run, recipe), device, config.batch_size)
    samples = Dataset(run.config().data["train"]["dataset"]).read("val")
    batches = runner.portion(samples).batches
    threads = threads_per_copy(config) * config.copies
    with _threads(threads), torch.inference_mode(), _autocast(device, config.precision):
        runner.outputs(batches[0])
        events, start, seconds = 0, time.perf_counter(), 0.0
        while seconds < _SECONDS:
            for batch in batches:
                runner.outputs(batch)
                events += batch.size
            if device.type != "cpu":
                torch.accelerator.synchronize()
            seconds = time.perf_counter() - start
    return {
        "events_per_second": events / seconds,
        "events": events,
        "seconds": seconds,
        "batch_size": config.batch_size,
        "precision": config.precision,
        "device": str(device),
    }


def agreement(run: Run, config: WorkloadConfig) -> dict[str, Any] | None:
    """Compare the outputs of the trained model on one thread with those on the device, or on several threads.

    The outputs are those of `Recipe.benchmark_outputs`, for a few validation events.

    Returns:
        `between` (the two ways), `items`, and `outputs` by name: `differ` (share of entries), `by_layer` (the same per
        index of the first of several dimensions), `mean_difference` of a boolean output. None if there are no outputs.
    """
    device, threads = _device(config), max(2, threads_per_copy(config))
    first, second = _outputs(run, torch.device("cpu"), 1), _outputs(run, device, threads)
    if not first:
        return None
    return {
        "between": ["1 thread", str(device) if device.type != "cpu" else f"{threads} threads"],
        "outputs": {name: _difference(first[name], second[name]) for name in first},
        "items": int(next(iter(first.values())).shape[-1]),
    }


def _difference(first: torch.Tensor, second: torch.Tensor) -> dict[str, Any]:
    differ = (first != second).double()
    difference: dict[str, Any] = {"differ": float(differ.mean())}
    if differ.dim() > 1:
        difference["by_layer"] = differ.flatten(1).mean(dim=1).tolist()
    if first.dtype == torch.bool:
        difference["mean_difference"] = abs(float(first.double().mean()) - float(second.double().mean()))
    return difference


def benchmark_outputs(run: Run, config: WorkloadConfig) -> Mapping[str, torch.Tensor]:
    """Return the outputs of `Recipe.benchmark_outputs` for a few validation events, on the device of the training."""
    return _outputs(run, _device(config), threads_per_copy(config))


def _outputs(run: Run, device: torch.device, threads: int) -> dict[str, torch.Tensor]:
    recipe, _ = recipe_of_run(run)
    model = _best_model(run, recipe).eval().to(device)
    batch = _validation_batch(run, recipe).to(device)
    with _threads(threads), torch.inference_mode():
        return {name: output.cpu() for name, output in recipe.benchmark_outputs(model, batch).items()}


def _validation_batch(run: Run, recipe: Recipe) -> Batch:
    samples = Dataset(run.config().data["train"]["dataset"]).read("val")
    return to_batch(samples.slice(0, min(_EVENTS, len(samples))), recipe.columns)


def _device(config: WorkloadConfig) -> torch.device:
    return find_device() if devices_per_copy(config) else torch.device("cpu")


def _best_model(run: Run, recipe: Recipe) -> torch.nn.Module:
    """Return the model with the weights of the best validation."""
    model = recipe.model()
    checkpoint.load(model, run.checkpoint("best"))
    return model


def _autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context of a precision, as in training."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
