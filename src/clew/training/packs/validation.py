"""Validation of all models of a pack: one pass over the samples, the recipe's tallies for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clew import metrics
from clew.data.dataset.batch import cut
from clew.data.dataset.sample_store import Store
from clew.data.table import Table
from clew.metrics import Mean, Metric
from clew.recipe import Recipe
from clew.training import validation
from clew.training.packs.engine import PackEngine, Told

_CHUNK = 1 << 14
"""Samples whose metrics are made together."""
_BATCH = 256
"""Samples a forward pass: what stays in the processor's cache; on a device, more."""
_DEVICE_BATCH = 2048

Arrays = dict[str, NDArray[Any]]


def judge_all(
    engine: PackEngine,
    recipes: Sequence[Recipe],
    store: Store,
    device: torch.device,
    *,
    beat: Callable[[], None] = lambda: None,
) -> list[dict[str, Metric]]:
    """The tallies of every model, over all samples of a store."""
    found: list[list[dict[str, Metric]]] = [[] for _ in recipes]
    engine.train(False)
    try:
        for first in range(0, len(store), _CHUNK):
            samples = store.read(np.arange(first, min(first + _CHUNK, len(store))))
            for part, outputs, losses in _said(engine, samples, device, beat):
                for row, recipe in enumerate(recipes):
                    found[row].append(_tallies(recipe, part, {n: each[row] for n, each in outputs.items()}))
                    found[row].append({"loss": Mean(float(losses[0][row]), float(losses[1][row]))})
    finally:
        engine.train()
    return [_ordered(metrics.add_metrics(each)) for each in found]


def _ordered(tallies: dict[str, Metric]) -> dict[str, Metric]:
    return {"loss": tallies["loss"], **tallies}


def _tallies(recipe: Recipe, samples: Table, outputs: Arrays) -> dict[str, Metric]:
    return dict(recipe.metrics(samples, outputs, recipe.reconstruct(samples, outputs)))


def _said(
    engine: PackEngine, samples: Table, device: torch.device, beat: Callable[[], None]
) -> list[tuple[Table, Arrays, tuple[Any, Any]]]:
    """Samples, outputs and losses: in one where every output has a row an event, else batch by batch."""
    size = _BATCH if device.type == "cpu" else _DEVICE_BATCH
    parts: list[Any] = []
    for batch in cut(samples, size, engine.recipe.columns):
        beat()
        here = batch.to(device)
        with torch.no_grad():
            outputs = engine.outputs(here)
            told = engine.losses(outputs, here)
        parts.append((batch.size, validation.outputs_by_name(outputs), told))
    rows = all(v.ndim > 1 and v.shape[1] == count for count, outputs, _ in parts for v in outputs.values())
    if rows and all(len({p[1][name].shape[2:] for p in parts}) == 1 for name in parts[0][1]):
        joined = {name: torch.cat([p[1][name] for p in parts], dim=1) for name in parts[0][1]}
        return [(samples, validation.to_arrays(joined), _sums([p[2] for p in parts]))]
    places = range(0, len(samples), size)
    return [
        (samples.slice(first, first + size), validation.to_arrays(outputs), _sums([told]))
        for first, (_, outputs, told) in zip(places, parts, strict=True)
    ]


def _sums(told: Sequence[Told]) -> tuple[Any, Any]:
    totals = torch.stack([each.totals for each in told]).double().sum(0).cpu().numpy()
    weights = torch.stack([each.weights for each in told]).double().sum(0).cpu().numpy()
    return totals, weights
