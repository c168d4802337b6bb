"""What a trained model of a workload is asked: how fast it answers, and whether that depends on device and threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clew.bench.workload.config import WorkloadConfig, devices_per_copy, threads_per_copy
from clew.data.dataset import Dataset
from clew.data.dataset.batch import Batch, to_batch
from clew.inference.model_runner import ModelRunner
from clew.recipe import Recipe
from clew.runs import Run
from clew.training import checkpoint
from clew.training.run_recipe import recipe_of_run
from clew.training.training_data import default_device

_LEAST = 3.0
"""Seconds that inference is measured at least."""
_EVENTS = 8
"""Of validation, on which agreement is looked at."""


def inference(run: Run, config: WorkloadConfig) -> dict[str, Any]:
    """Events a second through the trained network, batches ready in memory, the first left out; one copy on the
    threads of all."""
    recipe, _ = recipe_of_run(run)
    device = default_device(0) if devices_per_copy(config) else torch.device("cpu")
    asked = ModelRunner(recipe, _model(run, recipe), device, config.batch_size)
    samples = Dataset(run.config().data["train"]["dataset"]).read("val")
    batches = asked.portion(samples).batches
    with (
        _threads(threads_per_copy(config) * config.copies),
        torch.inference_mode(),
        _autocast(device, config.precision),
    ):
        asked.outputs(batches[0])
        events, begun, seconds = 0, time.perf_counter(), 0.0
        while seconds < _LEAST:
            for batch in batches:
                asked.outputs(batch)
                events += batch.size
            if device.type != "cpu":
                torch.accelerator.synchronize()
            seconds = time.perf_counter() - begun
    return {
        "events_per_second": events / seconds,
        "events": events,
        "seconds": seconds,
        "batch_size": config.batch_size,
        "precision": config.precision,
        "device": str(device),
    }


def agreement(run: Run, config: WorkloadConfig) -> dict[str, Any] | None:
    """How far one thread and what was measured on (the device, or several threads) agree on the trained model.

    The share of elements that are in another bin, and of those that are told another class, over a few validation
    events; None where the network has no bins.
    """
    model, batch = _judged(run)
    if not hasattr(model, "bins"):
        return None
    device, many = (
        default_device(0) if devices_per_copy(config) else torch.device("cpu"),
        max(2, threads_per_copy(config)),
    )
    (bins, told), (others, otherwise) = _binned(model, batch, "cpu", 1), _binned(model, batch, device, many)
    moved = (bins != others).double().mean(dim=(1, 2))
    true = batch["targets"][:, 0].long()
    accuracies = [float((each == true).double().mean()) for each in (told, otherwise)]
    return {
        "between": ["1 thread", str(device) if device.type != "cpu" else f"{many} threads"],
        "share_of_elements_that_flip": float(moved.mean()),
        "by_layer": [float(each) for each in moved],
        "share_told_another_class": float((told != otherwise).double().mean()),
        "accuracy_gap": abs(accuracies[0] - accuracies[1]),
        "elements": int(bins.shape[-1]),
    }


def classes(run: Run, config: WorkloadConfig) -> NDArray[np.int64]:
    """What the trained model says of the elements of a few validation events, where it was trained."""
    model, batch = _judged(run)
    device = default_device(0) if devices_per_copy(config) else "cpu"
    told: NDArray[np.int64] = _binned(model, batch, device, threads_per_copy(config))[1].numpy()
    return told


def _judged(run: Run) -> tuple[Any, Batch]:
    """The trained model, and a few validation events."""
    recipe, _ = recipe_of_run(run)
    samples = Dataset(run.config().data["train"]["dataset"]).read("val")
    return _model(run, recipe).eval(), to_batch(samples.slice(0, min(_EVENTS, len(samples))), recipe.columns)


def _binned(model: Any, batch: Batch, device: torch.device | str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The bins and the classes of all elements, as computed there."""
    elements, model = batch.to(torch.device(device)).ragged("elements"), model.to(device)
    with _threads(count), torch.inference_mode():
        bins = model.bins(elements.values, elements.offsets)
        told = model(elements.values, elements.offsets)["class"].argmax(dim=1)
    return bins.cpu(), told.cpu()


def padding(recipe: Recipe, dataset: Dataset) -> dict[str, float]:
    """Shares of places without an element: in bins of each event, and in events padded to the longest one."""
    size = getattr(getattr(recipe.config, "model", None), "bin_size", None)
    if size is None or "elements" not in dataset.schema:
        return {}
    lengths = np.asarray(dataset.lengths("train", "elements"), dtype=np.int64)
    bins = -(-lengths // size) * size
    return {
        "elements_per_event": float(lengths.mean()),
        "padding_share": float(1 - lengths.sum() / bins.sum()),
        "padding_share_of_rectangles": float(1 - lengths.sum() / (bins.max() * len(bins))),
    }


def _model(run: Run, recipe: Recipe) -> torch.nn.Module:
    """With the weights of the best validation."""
    model = recipe.model()
    checkpoint.load(model, run.checkpoint("best"))
    return model


def _autocast(device: torch.device, precision: str) -> torch.autocast:
    """As in training."""
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
