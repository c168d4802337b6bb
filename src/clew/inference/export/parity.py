"""Compares an exported model with the original on real samples. A file that differs is not kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clew.data.dataset import Dataset
from clew.data.dataset.batch import Batch, to_batch
from clew.data.dataset.sample_store import DiskSamples
from clew.data.table import Table
from clew.errors import RecipeError
from clew.inference.sample_sources import DatasetSplit
from clew.recipe import Recipe
from clew.training.validation import outputs_by_name

SAMPLES = 256
SIZES = (1, 2, 3, 17)
"""Sizes of the first batches; the other samples make one batch. Several sizes show a graph that works for one only."""


DISCRETE_SHARE = 0.01
"""Share of the values of an output with decisions (`Recipe.discrete_outputs`) that may differ by any amount."""


class Difference(NamedTuple):
    """The largest difference between two models, relative to the larger of 1 and the original's value."""

    value: float
    output: str
    size: int


def read_samples(dataset: Dataset, split: str | None) -> Table:
    """Read some samples of a split."""
    chosen = DatasetSplit.of(dataset, split).split
    return DiskSamples(dataset, chosen, None).read_range(0, min(SAMPLES, dataset.splits[chosen]))


def trial_batches(samples: Table, recipe: Recipe) -> Iterator[Batch]:
    """The samples in batches of several sizes."""
    first, names = 0, recipe.columns
    if names is not None:
        names = [name for name in names if name in samples]
    for size in (*SIZES, len(samples)):
        part = samples.slice(first, first + size)
        if len(part):
            yield to_batch(part, names)
        first += size


def largest_difference(recipe: Recipe, original: nn.Module, exported: nn.Module, trials: Iterable[Batch]) -> Difference:
    """Return the largest difference between an exported model and the original.

    Raises:
        RecipeError: The exported model fails, or returns other outputs or shapes.
    """
    worst = Difference(0.0, "", 0)
    for batch in trials:
        with torch.no_grad():
            expected = dict(outputs_by_name(recipe.forward(original, batch)))
            try:
                actual: Mapping[str, Tensor] = exported(batch)
            except Exception as error:
                message = (str(error).splitlines() or [""])[0]
                raise RecipeError(f"the exported model fails on a batch of {batch.size} samples: {message}") from error
        for name, value in expected.items():
            if name not in actual or actual[name].shape != value.shape:
                shape = tuple(actual[name].shape) if name in actual else "nothing"
                raise RecipeError(f"the exported model returns {shape} for '{name}', the original {tuple(value.shape)}")
            share = DISCRETE_SHARE if name in recipe.discrete_outputs else 0.0
            difference = _difference(value.double(), actual[name].double(), share)
            if not difference <= worst.value:
                worst = Difference(difference, name, batch.size)
    return worst


def _difference(original: Tensor, exported: Tensor, share: float) -> float:
    """Return the largest relative difference, without the `share` of values with the largest ones."""
    if not original.numel():
        return 0.0
    same = torch.isnan(original) & torch.isnan(exported) | (original == exported)  # infinities
    relative = (original - exported).abs() / original.abs().clamp(min=1)
    values = torch.where(same, 0.0, relative).nan_to_num(torch.inf).flatten()
    return float(values.kthvalue(values.numel() - int(share * values.numel())).values)
