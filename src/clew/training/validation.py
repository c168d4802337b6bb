"""Evaluation of a model on samples: forward pass, reconstruction, metrics."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clew import metrics
from clew.data.dataset import Dataset
from clew.data.dataset.batch import Batch, RaggedTensor, to_batch
from clew.data.dataset.sample_store import SampleStore
from clew.data.table import Table
from clew.errors import ClewError, RecipeError
from clew.metrics import Mean, Metric
from clew.models.estimators import EstimatorModule
from clew.models.estimators.lookup import check_estimator
from clew.models.losses import loss_by_name
from clew.recipe import Loss, Recipe
from clew.recipe_errors import recipe_error, recipe_errors, wrong_return
from clew.training.engine import as_loss
from clew.training.start_weights import load_weights

if TYPE_CHECKING:
    from clew.training.metric_workers import MetricWorkers


def evaluate_batch(recipe: Recipe, model: nn.Module, samples: Table, device: torch.device) -> dict[str, Metric]:
    """Return the metrics of a batch of samples: the losses first, then those of the recipe."""
    own = _own_metrics(recipe, model, samples, device)
    if own is not None:
        return own
    outputs, losses = forward(recipe, model, samples, device)
    return {**losses, **recipe_metrics(recipe, samples, outputs)}


def _own_metrics(recipe: Recipe, model: nn.Module, samples: Table, device: torch.device) -> dict[str, Metric] | None:
    """Return the metrics that the network computes itself; None if it does not."""
    if type(recipe).validation_metrics is Recipe.validation_metrics:
        return None
    batch = to_batch(samples, recipe.columns).to(device)
    with _evaluation_mode(model):
        recipe_metrics = recipe.validation_metrics(model, batch, test=False)
    return None if recipe_metrics is None else dict(recipe_metrics)


@contextlib.contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def recipe_metrics(
    recipe: Recipe, samples: Table, outputs: Mapping[str, Any], *, evaluation: bool = False
) -> dict[str, Metric]:
    """Return the metrics that a recipe computes for a batch.

    Args:
        recipe: The recipe.
        samples: The samples of the batch.
        outputs: The outputs of the network for them.
        evaluation: Whether `Recipe.evaluation_metrics` are wanted, too.

    Raises:
        RecipeError: The recipe returned something else than metrics by name.
    """
    objects: Any = recipe.reconstruct(samples, outputs)
    if not isinstance(objects, Table):
        raise wrong_return(recipe, "reconstruct", f"a {type(objects).__name__}")
    results: dict[str, Metric] = {}
    for method in (recipe.metrics, recipe.evaluation_metrics) if evaluation else (recipe.metrics,):
        returned: Any = method(samples, outputs, objects)
        if not isinstance(returned, Mapping):
            raise wrong_return(recipe, method.__name__, f"a {type(returned).__name__}")
        for name, metric in returned.items():
            if not isinstance(metric, Metric):
                raise wrong_return(recipe, method.__name__, f"a {type(metric).__name__} for '{name}'")
        results |= returned
    return results


def build_model(recipe: Recipe, start_from: str | None = None, *, dataset: Dataset | None = None) -> nn.Module:
    """Return a new model of a recipe.

    Args:
        recipe: The recipe.
        start_from: A file with the weights that the model gets; None for those of the recipe.
        dataset: The dataset to which the model is adapted; None for a model whose weights are loaded later.

    Raises:
        RecipeError: `Recipe.model` or `Recipe.adapt` failed, or returned something else than a module.
        RunError: The file is of another model.
    """
    with recipe_errors():
        model: Any = _estimator_module(recipe) if recipe.has_estimator else recipe.model()
    if not isinstance(model, nn.Module):
        raise wrong_return(recipe, "model", f"a {type(model).__name__}")
    if start_from is not None:
        load_weights(model, Path(start_from))
    elif dataset is not None:
        with recipe_errors():
            recipe.adapt(model, dataset)
    return model


def _estimator_module(recipe: Recipe) -> EstimatorModule:
    """Return the estimator of a recipe as a module.

    Raises:
        RecipeError: It is no estimator.
    """
    made = recipe.estimator()
    return EstimatorModule(check_estimator(made, f"{type(recipe).__name__}.estimator()"), recipe.estimator_columns[0])


def evaluate_batches(
    recipe: Recipe,
    model: nn.Module,
    store: SampleStore,
    batches: Iterable[NDArray[np.int64]],
    device: torch.device,
    workers: MetricWorkers | None = None,
) -> dict[str, Metric]:
    """Return the metrics of several batches together. Empty batches are skipped.

    Args:
        recipe: The recipe.
        model: The model, on `device`.
        store: The samples.
        batches: The numbers of the samples of each batch.
        device: Where the model computes.
        workers: Processes that compute metrics. Default: they are computed in this process.
    """
    results: list[Callable[[], dict[str, Metric]]] = []
    for numbers in batches:
        if len(numbers):
            place = partial(describe_samples, numbers, "val")
            with recipe_errors(place):
                samples = store.read(numbers)
                results.append(_start_batch(recipe, model, samples, device, workers, place))
    return metrics.add_metrics([result() for result in results])


def _start_batch(
    recipe: Recipe,
    model: nn.Module,
    samples: Table,
    device: torch.device,
    workers: MetricWorkers | None,
    place: Callable[[], str],
) -> Callable[[], dict[str, Metric]]:
    """Apply the network to a batch. Return a function that returns the metrics, after waiting for other processes."""
    if workers is None or not workers.limit:
        computed = evaluate_batch(recipe, model, samples, device)
        return lambda: computed
    own = _own_metrics(recipe, model, samples, device)
    if own is not None:
        return lambda: own
    outputs, losses = forward(recipe, model, samples, device)
    task = workers.submit(samples, outputs, place)
    return lambda: {**losses, **task.result()}


def describe_samples(numbers: NDArray[np.int64], split: str) -> str:
    """Return which samples of a split a batch has, for a message: a range, or the first few numbers."""
    if len(numbers) and np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(numbers))):
        return f"samples {numbers[0]}-{numbers[-1]} of split {split}"
    more = f", ... ({len(numbers)} samples)" if len(numbers) > 3 else ""
    return f"samples {', '.join(map(str, numbers[:3]))}{more} of split {split}"


def check_batch(recipe: Recipe, model: nn.Module, samples: Table, device: torch.device) -> dict[str, Metric]:
    """Evaluate a few samples to check that model and data fit together.

    Raises:
        RecipeError: The model does not accept the batch. The message describes the batch and the failing line.
    """
    try:
        return evaluate_batch(recipe, model, samples, device)
    except Exception as error:
        raise mismatch_error(error, to_batch(samples, recipe.columns)) from error


def mismatch_error(error: Exception, batch: Batch) -> Exception:
    """Return the error to raise if a model does not accept a batch."""
    hint = "model and data do not fit: " if isinstance(error, RuntimeError) else ""
    translated = recipe_error(error, f"{hint}the batch has {batch.describe()}")
    if isinstance(translated, ClewError):
        return translated
    frame = traceback.extract_tb(error.__traceback__)[-1]
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    place = f"{frame.filename}:{frame.lineno}"
    arguments = isinstance(error, TypeError) and "positional argument" in reason
    masked = arguments and any(isinstance(column, RaggedTensor) for column in batch.columns.values())
    hint = "; a model of ragged features takes two arguments, forward(features, mask)" if masked else ""
    return RecipeError(f"{place}: model and data do not fit: {reason}; the batch has {batch.describe()}{hint}")


def forward(
    recipe: Recipe, model: nn.Module, samples: Table, device: torch.device
) -> tuple[dict[str, NDArray[Any]], dict[str, Metric]]:
    """Return the outputs of the network as NumPy arrays, and the loss if the recipe defines `loss`."""
    batch = to_batch(samples, recipe.columns).to(device)
    with _evaluation_mode(model):
        outputs = recipe.forward(model, batch)
        check_outputs(recipe, outputs)
        losses = batch_losses(recipe, model, outputs, batch).metrics
    return to_arrays(outputs_by_name(outputs)), losses


def check_outputs(recipe: Recipe, outputs: Any) -> None:
    """Check that a recipe's `forward` returned tensors.

    Raises:
        RecipeError: It returned something else.
    """
    values = outputs.values() if isinstance(outputs, Mapping) else [outputs]
    for value in values:
        if not isinstance(value, Tensor):
            raise wrong_return(recipe, "forward", f"a {type(value).__name__}")


class BatchLosses(NamedTuple):
    """The loss of a batch."""

    metrics: dict[str, Metric]
    """The loss as a metric, and metrics that the network computes. Empty if the recipe does not define `loss`."""
    per_event: NDArray[Any] | None = None
    """The loss of each event, without event weights; None if the recipe does not return one value per event."""


def batch_losses(recipe: Recipe, model: nn.Module, outputs: Any, batch: Batch) -> BatchLosses:
    """Return the loss of a batch, and the metrics that the network computes itself.

    Raises:
        RecipeError: The recipe returned something else.
    """
    recipe_metrics = recipe.validation_metrics(model, batch, test=True)
    if recipe_metrics is not None:
        return BatchLosses(dict(recipe_metrics))
    if type(recipe).loss is Recipe.loss and not recipe.has_estimator:
        return BatchLosses({})
    loss: Any = _loss(recipe, outputs, batch)
    if not isinstance(loss, (Tensor, Loss)):
        raise wrong_return(recipe, "loss", f"a {type(loss).__name__}")
    total, weight = as_loss(loss, batch)
    metric: dict[str, Metric] = {"loss": Mean(float(total), float(weight))}
    if not isinstance(loss, Tensor) or loss.ndim != 1:
        return BatchLosses(metric)
    return BatchLosses(metric, loss.detach().float().cpu().numpy())


def _loss(recipe: Recipe, outputs: Any, batch: Batch) -> Any:
    """Return the loss of a recipe; of an estimator without a loss, the cross-entropy or the squared error."""
    if type(recipe).loss is not Recipe.loss:
        return recipe.loss(outputs, batch)
    labels = batch[recipe.estimator_columns[1]]
    classes = outputs.shape[1] > 1 and not labels.is_floating_point()
    return loss_by_name("cross_entropy" if classes else "mse", probabilities=classes)(outputs, labels)


def outputs_by_name(outputs: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return tensors by name. The name of a single output is `output`."""
    return outputs if isinstance(outputs, Mapping) else {"output": outputs}


def to_arrays(outputs: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Return outputs as recipes receive them: NumPy arrays in single precision."""
    return {name: np.asarray(value.detach().float().cpu().numpy()) for name, value in outputs.items()}
