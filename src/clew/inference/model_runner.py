"""A trained model asked about samples, a batch at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clew.data.dataset.batch import Batch, cut
from clew.data.table import Table
from clew.errors import ClewError
from clew.metrics import Metric
from clew.recipe import Recipe
from clew.training import validation

Outputs = Mapping[str, Tensor]
Mode = Callable[[], contextlib.AbstractContextManager[Any]]


class SamplePortion(NamedTuple):
    """Some samples, and the same as batches on the device."""

    samples: Table
    batches: list[Batch]


class ModelOutput(NamedTuple):
    """Some samples, what the network said of them, and the losses where they were asked for."""

    samples: Table
    outputs: dict[str, NDArray[Any]]
    losses: dict[str, Metric]


@dataclass
class ModelRunner:
    """A model on its device. Batches begin at multiples of `size`, whatever samples come together in a portion: what
    is computed depends on the size of batches alone."""

    recipe: Recipe
    model: nn.Module
    device: torch.device
    size: int
    losses: bool = False
    """Whether losses are wanted: the samples must then have all of `Recipe.columns`. Otherwise those columns that only
    the loss needs may be missing."""

    def __post_init__(self) -> None:
        self.model.to(self.device).eval()
        self._works: Mode | None = None

    def portion(self, samples: Table) -> SamplePortion:
        """Samples made ready for the device; may be called in another thread than the rest."""
        names = self.recipe.columns
        if names is not None and not self.losses:
            names = [name for name in names if name in samples]
        batches = cut(samples, self.size, names)
        return SamplePortion(
            samples, batches if self.device.type == "cpu" else [b.pin().to(self.device) for b in batches]
        )

    def outputs(self, batch: Batch) -> Any:
        """What the network gives for a batch."""
        return self.recipe.forward(self.model, batch)

    def answers(self, portion: SamplePortion) -> Iterator[ModelOutput]:
        """What the network says, batch by batch."""
        return self._apart(portion, map(self._ask, portion.batches))

    def together(self, portion: SamplePortion) -> Iterator[ModelOutput]:
        """The same without losses and in one, where every output has one row an event."""
        with self._mode(portion.batches[0]):
            outputs = [validation.outputs_by_name(self.outputs(batch)) for batch in portion.batches]
        joined = _joined(outputs, portion.batches)
        if joined is None:
            return self._apart(portion, ((each, {}) for each in outputs))
        return iter([ModelOutput(portion.samples, validation.to_arrays(joined), {})])

    def _apart(
        self, portion: SamplePortion, said: Iterable[tuple[Outputs, dict[str, Metric]]]
    ) -> Iterator[ModelOutput]:
        for number, (outputs, losses) in enumerate(said):
            first = number * self.size
            yield ModelOutput(portion.samples.slice(first, first + self.size), validation.to_arrays(outputs), losses)

    def _ask(self, batch: Batch) -> tuple[Outputs, dict[str, Metric]]:
        with self._mode(batch):
            return self._forward(batch)

    def _forward(self, batch: Batch) -> tuple[Outputs, dict[str, Metric]]:
        outputs = self.outputs(batch)
        return validation.outputs_by_name(outputs), validation.loss_metric(
            self.recipe, outputs, batch
        ) if self.losses else {}

    def _mode(self, batch: Batch) -> contextlib.AbstractContextManager[Any]:
        """In which the model is run: torch's inference mode or, where it does not work in that (a network that takes
        gradients of its own, say), without gradients. The first batch decides.

        Raises:
            RecipeError: it works in neither, because model and data do not fit.
        """
        if self._works is None:
            self._works = self._tried(batch)
        return self._works()

    def _tried(self, batch: Batch) -> Mode:
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


def _joined(outputs: Sequence[Outputs], batches: Sequence[Batch]) -> Outputs | None:
    """Outputs of several batches one after the other, where all of them have one row an event."""
    joined = {}
    for name in outputs[0]:
        parts = [each[name] for each in outputs]
        if any(not part.ndim or len(part) != batch.size for part, batch in zip(parts, batches, strict=True)):
            return None
        if len({part.shape[1:] for part in parts}) > 1:
            return None
        joined[name] = torch.cat(parts)
    return joined
