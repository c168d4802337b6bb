"""What a trained model of a workload is asked: how fast it answers, and whether its bins depend on threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from clew.bench.terms import WorkloadConfig, devices, threads
from clew.dataset import Dataset
from clew.dataset.batch import to_batch
from clew.ledger import Run
from clew.recipe import Recipe
from clew.train import checkpoint
from clew.train.evaluate import recipe_of
from clew.train.inference import Inference
from clew.train.supply import best_device

_LEAST = 3.0
"""Seconds that inference is measured at least."""


def inference(run: Run, config: WorkloadConfig) -> dict[str, Any]:
    """Events a second through the trained network, batches ready in memory, the first left out; one copy on the
    threads of all."""
    recipe, _ = recipe_of(run)
    device = best_device(0) if devices(config) else torch.device("cpu")
    asked = Inference(recipe, _model(run, recipe), device, config.batch_size)
    samples = Dataset(run.config().data["train"]["dataset"]).read("val")
    batches = asked.portion(samples).batches
    with _threads(threads(config) * config.copies), torch.inference_mode():
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
        "precision": "float32",
        "device": str(device),
    }


def flips(run: Run, config: WorkloadConfig) -> dict[str, Any] | None:
    """The share of elements that are in another bin with one thread than with several; None where there are no bins."""
    recipe, _ = recipe_of(run)
    model: Any = _model(run, recipe).eval()
    if not hasattr(model, "bins"):
        return None
    samples = Dataset(run.config().data["train"]["dataset"]).read("val")
    elements = to_batch(samples, recipe.columns).ragged("elements")
    many = max(2, threads(config))
    found = {}
    for count in (1, many):
        with _threads(count):
            found[count] = model.bins(elements.values, elements.offsets)
    moved = (found[1] != found[many]).double().mean(dim=(1, 2))
    return {
        "threads": [1, many],
        "share_of_elements_that_flip": float(moved.mean()),
        "by_layer": [float(each) for each in moved],
        "elements": int(found[1].shape[-1]),
    }


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


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
