"""The training and validation samples of a rank."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from clew.data.dataset import Dataset
from clew.data.dataset.loader import Loader
from clew.data.dataset.sample_store import DiskSamples, MemorySamples, SampleStore, open_store
from clew.data.dataset.sampler import Sampler
from clew.data.table import WEIGHT
from clew.errors import RecipeError
from clew.recipe import Recipe
from clew.recipe_errors import wrong_return
from clew.training.config import TrainConfig
from clew.training.step_recorder import can_record
from clew.training.strategies import Strategy


def make_loader(
    recipe: Recipe, config: TrainConfig, dataset: Dataset, strategy: Strategy, device: torch.device
) -> Loader:
    """Return a loader of this rank's share of the training split."""
    loading = config.loading
    sampler = make_sampler(config, dataset, strategy.share, costs=sample_costs(recipe, config, dataset, strategy))
    numbers = np.arange(sampler.samples)
    numbers_of_rank = numbers[sampler.owned(numbers) | (numbers < 2)] if sampler.streamed else None
    columns = training_columns(recipe, dataset)
    store = open_store(
        dataset, "train", keep=loading.keep, columns=columns, numbers=numbers_of_rank, block=sampler.block
    )
    immediate = loading.keep == "memory" and device.type == "cpu"
    ahead = loading.ahead if loading.ahead is not None else 0 if immediate else 2
    capacity = (
        partial(recipe.graph_capacity, precision=config.precision) if can_record(config, strategy, device) else None
    )
    return Loader(
        store, sampler, recipe.columns, device, config.accumulate, ahead, prefetch_next_epoch=True, capacity=capacity
    )


def sample_costs(
    recipe: Recipe, config: TrainConfig, dataset: Dataset, strategy: Strategy
) -> NDArray[np.float64] | None:
    """Return the cost of each training sample, from the numbers of items in the dataset's index.

    Returns:
        None if samples are shared by number: there is one rank, or all samples have the same size.

    Raises:
        RecipeError: The recipe returned something else than one number above 0 per sample.
    """
    loading, sets = config.loading, dataset.manifest.item_sets
    names = [name for name in recipe.columns or dataset.schema if name in sets]
    if loading.share == "samples" or loading.keep != "memory" or strategy.share[1] == 1 or not names:
        return None
    of_set = {items: dataset.lengths("train", items) for items in sorted({sets[name] for name in names})}
    costs = np.asarray(recipe.sample_costs({name: of_set[sets[name]] for name in names}), dtype=np.float64)
    if costs.shape != (dataset.splits["train"],) or not (np.isfinite(costs) & (costs > 0)).all():
        raise wrong_return(recipe, "sample_costs", _describe(costs))
    return costs


def _describe(costs: NDArray[np.float64]) -> str:
    return f"shape {costs.shape}" + (f" with {costs.min():g} in it" if costs.size else "")


def make_sampler(
    config: TrainConfig,
    dataset: Dataset,
    share: tuple[int, int] = (0, 1),
    *,
    costs: NDArray[np.float64] | None = None,
) -> Sampler:
    """Return the sampler that decides which training samples form which batch.

    Args:
        config: The settings.
        dataset: The dataset.
        share: Position of this rank among the ranks that share the data, and their number.
        costs: The cost of each sample, if ranks share batches by cost.
    """
    loading, (rank, ranks) = config.loading, share
    return Sampler(
        dataset.splits["train"],
        config.size,
        config.seed if config.order is None else config.order,
        rank,
        ranks,
        lengths=None if loading.bucket is None else dataset.lengths("train", loading.bucket),
        window=loading.window,
        budget=loading.max_items,
        streamed=loading.keep != "memory",
        costs=costs,
    )


def open_validation_samples(config: TrainConfig, dataset: Dataset) -> SampleStore:
    """Return the validation split, in memory or on disk as `train.loading.keep` says."""
    return MemorySamples(dataset.read("val")) if config.loading.keep == "memory" else DiskSamples(dataset, "val", None)


def training_columns(recipe: Recipe, dataset: Dataset) -> list[str] | None:
    """Return the columns to read for training: those of the recipe, and the event weights if there are any.

    Raises:
        RecipeError: A column holds indices of items of which no column is read.
    """
    if recipe.columns is None:
        return None
    for name in recipe.columns:
        target = dataset.schema[name].index_of if name in dataset.schema else ""
        if target and not dataset.same_items(target) & set(recipe.columns):
            raise RecipeError(f"Recipe.columns has '{name}', which points at '{target}': add '{target}' to it")
    return [*recipe.columns, *([WEIGHT] if WEIGHT in dataset.schema else [])]
