"""What a rank computes on, and with which samples."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from clew.data.dataset import Dataset
from clew.data.dataset.loader import Loader
from clew.data.dataset.sample_store import open_store
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
    """The training split as the settings want it."""
    loading, sampler = config.loading, make_sampler(config, dataset, strategy.share)
    everything = np.arange(sampler.samples)
    own = everything[sampler.owned(everything) | (everything < 2)] if sampler.streamed else None
    columns = training_columns(recipe, dataset)
    store = open_store(dataset, "train", keep=loading.keep, columns=columns, own=own, block=sampler.block)
    plain = loading.keep == "memory" and device.type == "cpu"
    ahead = loading.ahead if loading.ahead is not None else 0 if plain else 2
    room = partial(recipe.graph_capacity, precision=config.precision) if can_record(config, strategy, device) else None
    return Loader(store, sampler, recipe.columns, device, config.accumulate, ahead, goes_on=True, room=room)


def make_sampler(config: TrainConfig, dataset: Dataset, share: tuple[int, int] = (0, 1)) -> Sampler:
    """Which samples make which batch; `share`: of which of how many ranks."""
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


def training_columns(recipe: Recipe, dataset: Dataset) -> list[str] | None:
    """What to read for training: the recipe's columns, and the weights where there are any.

    Raises:
        RecipeError: a column points at items of which none would be read, so its numbers would mean nothing.
    """
    if recipe.columns is None:
        return None
    for name in recipe.columns:
        target = dataset.schema[name].index_of if name in dataset.schema else ""
        if target and not dataset.same_items(target) & set(recipe.columns):
            raise RecipeError(f"Recipe.columns has '{name}', which points at '{target}': add '{target}' to it")
    return [*recipe.columns, *([WEIGHT] if WEIGHT in dataset.schema else [])]


def default_device(number: int) -> torch.device:
    """The accelerator torch finds, of whatever make, dealt out by number; or the CPU."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    found = torch.accelerator.current_accelerator()
    assert found is not None
    return torch.device(found.type, number % torch.accelerator.device_count())
