"""Evaluation of a model on samples: forward pass, reconstruction, metrics."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clew import metrics
from clew.data.dataset.batch import Batch, to_batch
from clew.data.dataset.sample_store import SampleStore
from clew.data.table import Table
from clew.errors import ClewError, RecipeError
from clew.metrics import Mean, Metric
from clew.recipe import Recipe
from clew.training.engine import as_loss


def evaluate_batch(recipe: Recipe, model: nn.Module, samples: Table, device: torch.device) -> dict[str, Metric]:
    """Return the metrics of a batch of samples: the losses first, then those of the recipe."""
    outputs, losses = forward(recipe, model, samples, device)
    objects = recipe.reconstruct(samples, outputs)
    return {**losses, **recipe.metrics(samples, outputs, objects)}


def evaluate_batches(
    recipe: Recipe, model: nn.Module, store: SampleStore, batches: Iterable[NDArray[np.int64]], device: torch.device
) -> dict[str, Metric]:
    """Return the metrics of several batches together. Empty batches are skipped.

    Args:
        recipe: The recipe.
        model: The model, on `device`.
        store: The samples.
        batches: The numbers of the samples of each batch.
        device: Where the model computes.
    """
    return metrics.add_metrics(
        [evaluate_batch(recipe, model, store.read(numbers), device) for numbers in batches if len(numbers)]
    )


def check_batch(recipe: Recipe, model: nn.Module, samples: Table, device: torch.device) -> dict[str, Metric]:
    """Evaluate a few samples to check that model and data fit together.

    Raises:
        RecipeError: The model does not accept the batch. The message describes the batch and the failing line.
    """
    try:
        return evaluate_batch(recipe, model, samples, device)
    except ClewError:
        raise
    except Exception as error:
        raise mismatch_error(error, to_batch(samples, recipe.columns)) from error


def mismatch_error(error: Exception, batch: Batch) -> RecipeError:
    """Return the error to raise if a model does not accept a batch."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return RecipeError(f"{_location(error)}: model and data do not fit: {reason}; the batch has {batch.describe()}")


def _location(error: Exception) -> str:
    """File and line of the user's code that raised an error: the innermost frame outside installed libraries."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if "site-packages" not in frame.filename and frame.filename != __file__]
    frame = outside[-1] if outside else frames[-1]
    return f"{frame.filename}:{frame.lineno}"


def forward(
    recipe: Recipe, model: nn.Module, samples: Table, device: torch.device
) -> tuple[dict[str, NDArray[Any]], dict[str, Metric]]:
    """Return the outputs of the network as NumPy arrays, and the loss if the recipe defines `loss`."""
    batch = to_batch(samples, recipe.columns).to(device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            outputs = recipe.forward(model, batch)
            losses = batch_losses(recipe, outputs, batch).metrics
    finally:
        model.train(was_training)
    return to_arrays(outputs_by_name(outputs)), losses


class BatchLosses(NamedTuple):
    """The loss of a batch."""

    metrics: dict[str, Metric]
    """The loss as a metric. Empty if the recipe does not define `loss`."""
    per_event: NDArray[Any] | None = None
    """The loss of each event, without event weights; None if the recipe does not return one value per event."""


def batch_losses(recipe: Recipe, outputs: Any, batch: Batch) -> BatchLosses:
    """Return the loss of a batch."""
    if type(recipe).loss is Recipe.loss:
        return BatchLosses({})
    loss = recipe.loss(outputs, batch)
    total, weight = as_loss(loss, batch)
    metric: dict[str, Metric] = {"loss": Mean(float(total), float(weight))}
    if not isinstance(loss, Tensor) or loss.ndim != 1:
        return BatchLosses(metric)
    return BatchLosses(metric, loss.detach().float().cpu().numpy())


def outputs_by_name(outputs: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return tensors by name. The name of a single output is `output`."""
    return outputs if isinstance(outputs, Mapping) else {"output": outputs}


def to_arrays(outputs: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Return outputs as recipes receive them: NumPy arrays in single precision."""
    return {name: np.asarray(value.detach().float().cpu().numpy()) for name, value in outputs.items()}
