"""Runs a trained model on samples, batch by batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clew.data.dataset.batch import Batch, cut_batches
from clew.data.table import Table
from clew.errors import ClewError
from clew.recipe import Recipe
from clew.training import validation
from clew.training.metric_workers import MetricWorkers

Outputs = Mapping[str, Tensor]
Mode = Callable[[], contextlib.AbstractContextManager[Any]]


_NO_LOSSES = validation.BatchLosses({})


class SamplePortion(NamedTuple):
    """Some samples, and the same samples as batches on the device."""

    samples: Table
    batches: list[Batch]


class ModelOutput(NamedTuple):
    """Some samples, the outputs of the network for them, and the losses if they were requested."""

    samples: Table
    outputs: dict[str, NDArray[Any]]
    losses: validation.BatchLosses = _NO_LOSSES


@dataclass
class ModelRunner:
    """A model on its device.

    Batches start at multiples of `size`, however the samples are divided into portions: results depend only on the
    size of batches.
    """

    recipe: Recipe
    model: nn.Module
    device: torch.device
    size: int
    losses: bool = False
    """Whether losses are computed. Then the samples must have all of `Recipe.columns`; otherwise columns that only the
    loss needs may be missing."""

    metric_workers: MetricWorkers = field(init=False)
    """What computes metrics of outputs. Without another one, this process does."""

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()
        self.metric_workers = MetricWorkers(self.recipe, 0)
        self._working_mode: Mode | None = None

    def portion(self, samples: Table) -> SamplePortion:
        """Prepare samples for the device. It may be called in another thread than the other methods."""
        names = self.recipe.columns
        if names is not None and not self.losses:
            names = [name for name in names if name in samples]
        batches = cut_batches(samples, self.size, names)
        return SamplePortion(
            samples, batches if self.device.type == "cpu" else [b.pin().to(self.device) for b in batches]
        )

    def outputs(self, batch: Batch) -> Any:
        """Return the outputs of the network for a batch."""
        return self.recipe.forward(self.model, batch)

    def run(self, portion: SamplePortion) -> Iterator[ModelOutput]:
        """Yield the outputs and losses of a portion, batch by batch."""
        return self._per_batch(portion, map(self._run_batch, portion.batches))

    def run_joined(self, portion: SamplePortion) -> Iterator[ModelOutput]:
        """Yield the outputs without losses, in one piece if every output has one row per event."""
        with self._mode(portion.batches[0]):
            outputs = [validation.outputs_by_name(self.outputs(batch)) for batch in portion.batches]
        joined = _join_outputs(outputs, portion.batches)
        if joined is None:
            return self._per_batch(portion, ((batch_outputs, _NO_LOSSES) for batch_outputs in outputs))
        return iter([ModelOutput(portion.samples, validation.to_arrays(joined))])

    def _per_batch(
        self, portion: SamplePortion, results: Iterable[tuple[Outputs, validation.BatchLosses]]
    ) -> Iterator[ModelOutput]:
        for number, (outputs, losses) in enumerate(results):
            first = number * self.size
            yield ModelOutput(portion.samples.slice(first, first + self.size), validation.to_arrays(outputs), losses)

    def _run_batch(self, batch: Batch) -> tuple[Outputs, validation.BatchLosses]:
        with self._mode(batch):
            return self._forward(batch)

    def _forward(self, batch: Batch) -> tuple[Outputs, validation.BatchLosses]:
        outputs = self.outputs(batch)
        losses = validation.batch_losses(self.recipe, self.model, outputs, batch) if self.losses else _NO_LOSSES
        return validation.outputs_by_name(outputs), losses

    def _mode(self, batch: Batch) -> contextlib.AbstractContextManager[Any]:
        """Return the mode in which the model runs: the inference mode of torch or, if the model does not work in it (a
        network that computes gradients itself, for example), `no_grad`. The first batch decides.

        Raises:
            RecipeError: The model works in neither mode, because model and data do not fit.
        """
        if self._working_mode is None:
            self._working_mode = self._find_mode(batch)
        return self._working_mode()

    def _find_mode(self, batch: Batch) -> Mode:
        failure: Exception | None = None
        for mode in (torch.inference_mode, torch.no_grad):
            try:
                with mode():
                    self._forward(batch)
                return mode
            except ClewError:
                raise
            except Exception as error:
                failure = error
        assert failure is not None
        raise validation.mismatch_error(failure, batch) from failure


def _join_outputs(outputs: Sequence[Outputs], batches: Sequence[Batch]) -> Outputs | None:
    """Concatenate the outputs of several batches. None if some output does not have one row per event."""
    joined = {}
    for name in outputs[0]:
        parts = [each[name] for each in outputs]
        if any(not part.ndim or len(part) != batch.size for part, batch in zip(parts, batches, strict=True)):
            return None
        if len({part.shape[1:] for part in parts}) > 1:
            return None
        joined[name] = parts[0] if len(parts) == 1 else _concatenate(parts)
    return joined


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate rows. On the CPU by NumPy: the threads of torch would compete with those of onnxruntime."""
    if any(part.device.type != "cpu" or part.dtype != torch.float32 for part in parts):
        return torch.cat(list(parts))
    return torch.from_numpy(np.concatenate([part.detach().numpy() for part in parts]))
