"""Judging a model on samples: forward, reconstruct, tally."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clew import metrics
from clew.data.dataset.batch import Batch, to_batch
from clew.data.dataset.sample_store import Store
from clew.data.table import Table
from clew.errors import ClewError, RecipeError
from clew.metrics import Mean, Metric
from clew.recipe import Recipe
from clew.training.engine import as_loss


def evaluate_batch(recipe: Recipe, model: nn.Module, samples: Table, device: torch.device) -> dict[str, Metric]:
    """Every tally of a batch of samples: the losses, then the recipe's metrics."""
    outputs, losses = forward(recipe, model, samples, device)
    objects = recipe.reconstruct(samples, outputs)
    return {**losses, **recipe.metrics(samples, outputs, objects)}


def evaluate_batches(
    recipe: Recipe, model: nn.Module, store: Store, batches: Iterable[NDArray[np.int64]], device: torch.device
) -> dict[str, Metric]:
    """The tallies of all these batches of sample numbers together; one that is empty is left out."""
    return metrics.add_metrics(
        [evaluate_batch(recipe, model, store.read(numbers), device) for numbers in batches if len(numbers)]
    )


def check_batch(recipe: Recipe, model: nn.Module, samples: Table, device: torch.device) -> dict[str, Metric]:
    """`evaluate_batch` on a few samples, to find out whether everything fits.

    Raises:
        RecipeError: the model does not take the batch; says what is in it and where it broke.
    """
    try:
        return evaluate_batch(recipe, model, samples, device)
    except ClewError:
        raise
    except Exception as error:
        raise mismatch_error(error, to_batch(samples, recipe.columns)) from error


def mismatch_error(error: Exception, batch: Batch) -> RecipeError:
    """What to say where a model does not take a batch."""
    told = f"{type(error).__name__}: {error}".splitlines()[0]
    return RecipeError(f"{_place(error)}: model and data do not fit: {told}; the batch has {batch.describe()}")


def _place(error: Exception) -> str:
    """File and line of the user's code that led to an error: the innermost that is not a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and frame.filename != __file__]
    frame = own[-1] if own else frames[-1]
    return f"{frame.filename}:{frame.lineno}"


def forward(
    recipe: Recipe, model: nn.Module, samples: Table, device: torch.device
) -> tuple[dict[str, NDArray[Any]], dict[str, Metric]]:
    """The network's outputs as NumPy arrays, and the losses where the recipe has a plain `loss`."""
    batch = to_batch(samples, recipe.columns).to(device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            outputs = recipe.forward(model, batch)
            losses = loss_metric(recipe, outputs, batch)
    finally:
        model.train(was_training)
    return to_arrays(outputs_by_name(outputs)), losses


def loss_metric(recipe: Recipe, outputs: Any, batch: Batch) -> dict[str, Metric]:
    """The loss of a batch, where the recipe has a plain one."""
    if type(recipe).loss is Recipe.loss:
        return {}
    total, weight = as_loss(recipe.loss(outputs, batch), batch)
    return {"loss": Mean(float(total), float(weight))}


def outputs_by_name(outputs: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors by name; a network with a single one calls it `output`."""
    return outputs if isinstance(outputs, Mapping) else {"output": outputs}


def to_arrays(outputs: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Outputs as recipes get them: NumPy arrays in single precision."""
    return {name: np.asarray(value.detach().float().cpu().numpy()) for name, value in outputs.items()}
