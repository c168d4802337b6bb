"""Which features an estimator uses: its own measure, and the loss when the values of a feature are shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clew import figure
from clew.data.table import Table, concat
from clew.figure import Figure
from clew.inference.parallel_inference import InferenceTask
from clew.models.estimators import EstimatorModule
from clew.recipe import Recipe
from clew.training import validation

MAX_SAMPLES = 5_000
"""Samples with which importances are measured: the first ones that are evaluated."""
REPEATS = 3
"""Shuffles per feature. Their spread is the error."""
_MAX_SHOWN = 30
"""Features in a plot, the most important ones."""


def importance_figures(task: InferenceTask) -> dict[str, Figure]:
    """Return the plots of the importance of every feature, for a task that evaluates an estimator.

    Args:
        task: The evaluation.

    Returns:
        Plots by name. Empty for a network.
    """
    if not task.recipe.has_estimator:
        return {}
    model, samples = task.engine(torch.device("cpu")).model, _first_samples(task)
    assert isinstance(model, EstimatorModule)
    column = task.recipe.estimator_columns[0]
    names = feature_names(task.recipe, column, samples.fixed(column).shape[1])
    increase, spread = permutation_importances(task.recipe, model, samples)
    figures = {
        "permutation_importance": _bars(
            names, increase, spread, f"Permutation importance, {len(samples):,} events", "increase of the loss"
        )
    }
    importances = model.library.importances(model.fitted)
    if importances is not None:
        measure, values = importances
        figures["feature_importance"] = _bars(names, values, None, f"Feature importance, {model.origin}", measure)
    return figures


def permutation_importances(
    recipe: Recipe, model: EstimatorModule, samples: Table
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return by how much the loss increases if the values of one feature are shuffled among the events.

    Args:
        recipe: The recipe.
        model: The fitted estimator.
        samples: Samples with labels.

    Returns:
        The mean and the standard deviation over `REPEATS` shuffles, one number per feature.
    """
    column, device = recipe.estimator_columns[0], torch.device("cpu")
    features, random = samples.fixed(column), np.random.default_rng(0)

    def loss(values: NDArray[np.generic]) -> float:
        changed = Table({**dict(samples.items()), column: values})
        return validation.forward(recipe, model, changed, device)[1]["loss"].value

    before = loss(features)
    increases = np.zeros((features.shape[1], REPEATS))
    for number in range(features.shape[1]):
        for repeat in range(REPEATS):
            shuffled = features.copy()
            shuffled[:, number] = random.permutation(features[:, number])
            increases[number, repeat] = loss(shuffled) - before
    return increases.mean(1), increases.std(1, ddof=1)


def feature_names(recipe: Recipe, column: str, features: int) -> list[str]:
    """Return the names of features: the columns of the events if the samples hold them side by side, else numbers."""
    names = list(recipe.passthrough_columns().get(column, ()))
    return names if len(names) == features else [f"{column}[{number}]" for number in range(features)]


def _first_samples(task: InferenceTask) -> Table:
    parts: list[Table] = []
    for unit in task.samples.units(task.size, 1):
        parts.append(unit())
        if sum(map(len, parts)) >= MAX_SAMPLES:
            break
    return concat(parts).slice(0, MAX_SAMPLES)


def _bars(
    names: Sequence[str], values: NDArray[np.float64], errors: NDArray[np.float64] | None, title: str, axis: str
) -> Figure:
    order = np.argsort(values)[-_MAX_SHOWN:]
    bars: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "x": figure.plain(values[order]),
        "y": [names[number] for number in order],
    }
    if errors is not None:
        bars["error_x"] = {"type": "data", "array": figure.plain(errors[order]), "thickness": 1.5}
    return figure.figure([bars], title=title, x=axis)
