"""The gate every exported file passes: on real samples it says what the original says, or it is not kept."""

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
"""Of the first batches; the rest makes one. A graph that was made for one size is caught by another."""


class Difference(NamedTuple):
    """The largest between two models: over the larger of 1 and the original's value."""

    value: float
    output: str
    size: int


def read_samples(dataset: Dataset, split: str | None) -> Table:
    """Some real samples."""
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
    """How far an exported model is from the original.

    Raises:
        RecipeError: it fails, or gives other outputs or shapes.
    """
    worst = Difference(0.0, "", 0)
    for batch in trials:
        with torch.no_grad():
            wanted = dict(outputs_by_name(recipe.forward(original, batch)))
            try:
                found: Mapping[str, Tensor] = exported(batch)
            except Exception as error:
                told = (str(error).splitlines() or [""])[0]
                raise RecipeError(f"the exported model fails on a batch of {batch.size} samples: {told}") from error
        for name, value in wanted.items():
            if name not in found or found[name].shape != value.shape:
                shape = tuple(found[name].shape) if name in found else "nothing"
                raise RecipeError(
                    f"the exported model gives {shape} for '{name}' where the original {tuple(value.shape)}"
                )
            far = _difference(value.double(), found[name].double())
            if not far <= worst.value:
                worst = Difference(far, name, batch.size)
    return worst


def _difference(original: Tensor, exported: Tensor) -> float:
    if not original.numel():
        return 0.0
    same = torch.isnan(original) & torch.isnan(exported) | (original == exported)  # infinities
    far = (original - exported).abs() / original.abs().clamp(min=1)
    return float(torch.where(same, 0.0, far).nan_to_num(torch.inf).max())
