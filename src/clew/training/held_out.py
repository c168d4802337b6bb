"""The validation samples of a training: every rank evaluates its share of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from clew.data.dataset import Dataset
from clew.data.dataset.sampler import Sampler
from clew.metrics import metric_values
from clew.recipe import Recipe, TrainingHooks
from clew.training import validation
from clew.training.config import TrainConfig
from clew.training.metric_workers import MetricWorkers
from clew.training.strategies import Strategy
from clew.training.training_data import open_validation_samples

T = TypeVar("T")
_CHECKED = 4
"""Samples of the check before the first step."""


class HeldOutSamples:
    """The validation samples, and what evaluates them.

    Args:
        recipe: The recipe.
        config: The settings of the training.
        dataset: The dataset.
        strategy: How ranks share the samples and add their metrics.
        device: Where the model computes.
        workers: Processes that compute metrics.
    """

    def __init__(
        self,
        recipe: Recipe,
        config: TrainConfig,
        dataset: Dataset,
        strategy: Strategy,
        device: torch.device,
        workers: MetricWorkers,
    ) -> None:
        self._recipe, self._strategy, self._device, self._workers = recipe, strategy, device, workers
        self._samples = open_validation_samples(config, dataset)
        self._size = -(-config.size // config.accumulate)  # the size that fits into memory when training

    def check(self, model: nn.Module, hooks: TrainingHooks) -> dict[str, float]:
        """Evaluate a few samples and return their metrics.

        Raises:
            RecipeError: The model does not accept the data.
        """
        samples = self._samples.read(np.arange(min(_CHECKED, len(self._samples))))
        hooks.start_validation()
        metrics = validation.check_batch(self._recipe, model, samples, self._device)
        return metric_values({**metrics, **hooks.end_validation()})

    def evaluate(self, model: nn.Module, hooks: TrainingHooks, before_batch: Callable[[], object]) -> dict[str, float]:
        """Evaluate the share of this rank, and return the metrics of all ranks.

        Args:
            model: The model.
            hooks: The hooks of the training.
            before_batch: Called before each batch.
        """
        rank, ranks = self._strategy.share
        batches = Sampler(len(self._samples), self._size, 0, rank, ranks, shuffle=False).epoch(0)
        hooks.start_validation()
        metrics = validation.evaluate_batches(
            self._recipe, model, self._samples, _preceded(batches, before_batch), self._device, self._workers
        )
        return metric_values(self._strategy.sum_metrics({**metrics, **hooks.end_validation()}))


def _preceded(batches: Iterable[T], call: Callable[[], object]) -> Iterator[T]:
    for batch in batches:
        call()
        yield batch
