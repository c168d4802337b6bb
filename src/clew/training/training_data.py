"""The training and validation samples of a rank."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from clew.data.dataset import Dataset
from clew.data.dataset.loader import Loader
from clew.data.dataset.sample_store import DiskSamples, MemorySamples, SampleStore, open_store
from clew.data.dataset.sampler import Sampler
from clew.data.table import WEIGHT
from clew.errors import RecipeError
from clew.recipe import Recipe
from clew.training.config import TrainConfig
from clew.training.step_recorder import can_record
from clew.training.strategies import Strategy


def make_loader(
    recipe: Recipe, config: TrainConfig, dataset: Dataset, strategy: Strategy, device: torch.device
) -> Loader:
    """Return a loader of this rank's share of the training split."""
    loading, sampler = config.loading, make_sampler(config, dataset, strategy.share)
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


def make_sampler(config: TrainConfig, dataset: Dataset, share: tuple[int, int] = (0, 1)) -> Sampler:
    """Return the sampler that decides which training samples form which batch.

    Args:
        config: The settings.
        dataset: The dataset.
        share: Position of this rank among the ranks that share the data, and their number.
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
