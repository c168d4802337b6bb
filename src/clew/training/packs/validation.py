"""Validation of all members of a pack: one pass over the samples, and the recipe's metrics for each member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clew import metrics
from clew.data.dataset.batch import cut_batches
from clew.data.dataset.sample_store import SampleStore
from clew.data.table import Table
from clew.metrics import Mean, Metric
from clew.recipe import Recipe
from clew.training import validation
from clew.training.packs.engine import PackEngine, StepLosses

_CHUNK = 1 << 14
"""Samples whose metrics are computed together."""
_CPU_BATCH, _DEVICE_BATCH = 256, 2048
"""Samples per forward pass: what fits into the processor's cache; more on a device."""

Arrays = dict[str, NDArray[Any]]


class _EvaluatedSamples(NamedTuple):
    """Samples, the outputs for them, (members, samples, ...), and total and weight of the loss, (members,)."""

    samples: Table
    outputs: Arrays
    totals: NDArray[np.float64]
    weights: NDArray[np.float64]


def evaluate_pack(
    engine: PackEngine,
    recipes: Sequence[Recipe],
    store: SampleStore,
    device: torch.device,
    *,
    on_batch: Callable[[], None] = lambda: None,
) -> list[dict[str, Metric]]:
    """Return the metrics of every member over all samples of a store.

    Args:
        engine: The pack.
        recipes: The recipe of each member.
        store: The samples.
        device: Where the pack is.
        on_batch: Called before each batch.
    """
    parts: list[list[dict[str, Metric]]] = [[] for _ in recipes]
    engine.train(False)
    try:
        for first in range(0, len(store), _CHUNK):
            samples = store.read(np.arange(first, min(first + _CHUNK, len(store))))
            for evaluated in _evaluate_samples(engine, samples, device, on_batch):
                for row, recipe in enumerate(recipes):
                    outputs = {name: array[row] for name, array in evaluated.outputs.items()}
                    parts[row].append(validation.recipe_metrics(recipe, evaluated.samples, outputs))
                    loss = Mean(float(evaluated.totals[row]), float(evaluated.weights[row]))
                    parts[row].append({"loss": loss})
    finally:
        engine.train()
    return [_loss_first(metrics.add_metrics(member_parts)) for member_parts in parts]


def _loss_first(values: dict[str, Metric]) -> dict[str, Metric]:
    return {"loss": values["loss"], **values}


def _evaluate_samples(
    engine: PackEngine, samples: Table, device: torch.device, on_batch: Callable[[], None]
) -> list[_EvaluatedSamples]:
    """Return outputs and losses: in one piece if every output has one row per event, else batch by batch."""
    size = _CPU_BATCH if device.type == "cpu" else _DEVICE_BATCH
    batches: list[tuple[int, Mapping[str, Tensor], StepLosses]] = []
    for batch in cut_batches(samples, size, engine.recipe.columns):
        on_batch()
        on_device = batch.to(device)
        with torch.no_grad():
            outputs = engine.outputs(on_device)
            losses = engine.losses(outputs, on_device)
        batches.append((batch.size, validation.outputs_by_name(outputs), losses))
    row_per_event = all(
        value.ndim > 1 and value.shape[1] == count for count, outputs, _ in batches for value in outputs.values()
    )
    names = list(batches[0][1])
    if row_per_event and all(len({outputs[name].shape[2:] for _, outputs, _ in batches}) == 1 for name in names):
        joined = {name: torch.cat([outputs[name] for _, outputs, _ in batches], dim=1) for name in names}
        sums = _sum_losses([losses for _, _, losses in batches])
        return [_EvaluatedSamples(samples, validation.to_arrays(joined), *sums)]
    starts = range(0, len(samples), size)
    return [
        _EvaluatedSamples(samples.slice(first, first + size), validation.to_arrays(outputs), *_sum_losses([losses]))
        for first, (_, outputs, losses) in zip(starts, batches, strict=True)
    ]


def _sum_losses(losses: Sequence[StepLosses]) -> tuple[Any, Any]:
    totals = torch.stack([batch.totals for batch in losses]).double().sum(0).cpu().numpy()
    weights = torch.stack([batch.weights for batch in losses]).double().sum(0).cpu().numpy()
    return totals, weights
