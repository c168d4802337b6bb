"""Validations that wait or are in progress. They are computed by workers, a thread, or a background process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clew.data.dataset import Dataset
from clew.data.dataset.sample_store import SampleStore
from clew.data.dataset.sampler import Sampler
from clew.metrics import Metric, add_metrics, metric_from_data, metric_values
from clew.recipe import Recipe
from clew.training import validation
from clew.training.asynchronous.flat_model import FlatModel
from clew.training.asynchronous.worker_validation import validation_samples
from clew.training.background_validation import BackgroundValidator
from clew.training.config import TrainConfig


@dataclass
class PendingValidation:
    """The validation of the weights at the end of an epoch."""

    number: int
    position: dict[str, int]
    """The epoch and the step of the weights."""
    values: Tensor
    """Weights and buffers as one flat tensor."""
    started: float = field(default_factory=time.perf_counter)
    unassigned: list[tuple[int, int]] | None = None
    """Ranges of batches that no worker evaluates yet; None before the first worker asks."""
    assigned: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Ranges of batches by worker."""
    metrics: list[Mapping[str, Metric]] = field(default_factory=list)
    """Metrics of the ranges that are done."""


class ValidationQueue:
    """The validations of one training, in order of their epochs. Only the first one is in progress."""

    def __init__(self, recipe: Recipe, config: TrainConfig) -> None:
        self._recipe, self._config = recipe, config
        self.samples: SampleStore = validation_samples(config, Dataset(config.dataset))
        self._prototypes: dict[str, Metric] = {}
        """One metric of each name, from which the metrics of workers are read."""
        self.process = BackgroundValidator(recipe, config) if config.validation == "background" else None
        """The background process, if the settings ask for one."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="validate") if config.validation == "thread" else None
        self._result: Future[dict[str, float]] | None = None
        self.queue: list[PendingValidation] = []

    def rehearse(self, model: nn.Module, device: torch.device) -> dict[str, float]:
        """Evaluate a model on a few samples, so that mistakes show before the first step; return the metrics."""
        samples = self.samples.read(np.arange(min(4, len(self.samples))))
        self._prototypes = validation.check_batch(self._recipe, model, samples, device)
        return metric_values(self._prototypes)

    @property
    def pending(self) -> bool:
        """Whether a validation is not done yet."""
        return bool(self.queue)

    def weights(self, number: int) -> Tensor | None:
        """Return the weights of a validation that is not done yet."""
        return next((pending.values for pending in self.queue if pending.number == number), None)

    def assign(self, worker: int, workers: int) -> list[int] | None:
        """Assign some batches to one of `workers` workers.

        Returns:
            The number of the validation, the first batch, and the batch after the last; None if there is nothing to do.
        """
        if self._config.validation != "shared" or not self.queue or worker in self.queue[0].assigned:
            return None
        current = self.queue[0]
        if current.unassigned is None:
            count = -(-len(self.samples) // self._config.size)
            edges = [count * place // workers for place in range(workers + 1)]
            current.unassigned = [(a, b) for a, b in itertools.pairwise(edges) if a < b]
        if not current.unassigned:
            return None
        current.assigned[worker] = current.unassigned.pop(0)
        return [current.number, *current.assigned[worker]]

    def give_back(self, worker: int) -> None:
        """Let other workers evaluate the batches of a worker that is gone."""
        for pending in self.queue:
            batches = pending.assigned.pop(worker, None)
            if batches is not None and pending.unassigned is not None:
                pending.unassigned.append(batches)

    def add_metrics(self, worker: int, fields: Mapping[str, Any]) -> dict[str, float] | None:
        """Add the metrics of a worker's batches; return those of the whole validation once it is complete."""
        current = self.queue[0] if self.queue else None
        if current is None or current.number != fields["number"] or current.assigned.pop(worker, None) is None:
            return None
        data = fields["metrics"]
        current.metrics.append({name: metric_from_data(data[name], self._prototypes[name]) for name in data})
        if current.unassigned or current.assigned:
            return None
        return metric_values(add_metrics(current.metrics))

    def advance_thread(self) -> dict[str, float] | None:
        """Start the first validation in the thread; return its metrics once it is done."""
        if self._thread is None or not self.queue:
            return None
        if self._result is None:
            self._result = self._thread.submit(self._evaluate, self.queue[0].values)
        elif self._result.done():
            metrics, self._result = self._result.result(), None
            return metrics
        return None

    def _evaluate(self, values: Tensor) -> dict[str, float]:
        model = self._recipe.model()
        FlatModel(model).load(values)
        batches = Sampler(len(self.samples), self._config.size, shuffle=False).batches(0)
        cpu = torch.device("cpu")
        return metric_values(validation.evaluate_batches(self._recipe, model, self.samples, batches, cpu))

    def finish_first(self) -> PendingValidation:
        """Remove the first validation, which is done, and return it. The time of the next one starts now."""
        done = self.queue.pop(0)
        if self.queue:
            self.queue[0].started = time.perf_counter()
        return done

    def close(self) -> None:
        """End the thread and the process."""
        if self.process is not None:
            self.process.close()
        if self._thread is not None:
            self._thread.shutdown()
