"""The part of the validation that a worker computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clew import metrics
from clew.data.dataset import Dataset
from clew.data.dataset.sample_store import DiskSamples, MemorySamples, SampleStore
from clew.data.dataset.sampler import Sampler
from clew.recipe import Recipe
from clew.training import validation
from clew.training.asynchronous.flat_model import FlatModel
from clew.training.config import TrainConfig


class WorkerValidation:
    """A second model, and the validation samples, in a worker. Both are made when they are needed first."""

    def __init__(self, recipe: Recipe, config: TrainConfig, dataset: Dataset, device: torch.device) -> None:
        self._recipe, self._config, self._dataset, self._device = recipe, config, dataset, device
        self._flat_model: FlatModel | None = None

    def evaluate(self, values: Tensor, first: int, stop: int) -> dict[str, Any]:
        """Evaluate weights on some batches of the validation samples.

        Args:
            values: Weights and buffers as one flat tensor.
            first: The first batch.
            stop: The batch after the last.

        Returns:
            The metrics as JSON values.
        """
        if self._flat_model is None:
            self._model = self._recipe.model().to(self._device)
            self._samples = validation_samples(self._config, self._dataset)
            self._flat_model = FlatModel(self._model)
        self._flat_model.load(values)
        batches = Sampler(len(self._samples), self._config.size, shuffle=False).batches(0)[first:stop]
        values_by_name = validation.evaluate_batches(self._recipe, self._model, self._samples, batches, self._device)
        return {name: metrics.metric_to_data(metric) for name, metric in values_by_name.items()}


def validation_samples(config: TrainConfig, dataset: Dataset) -> SampleStore:
    """Return the validation samples: in memory if the training samples are, else on disk."""
    return MemorySamples(dataset.read("val")) if config.loading.keep == "memory" else DiskSamples(dataset, "val", None)
