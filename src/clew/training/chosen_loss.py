"""The loss of a model without a recipe, if the settings leave it open: the labels of the dataset choose it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from clew.data.dataset import Dataset
from clew.errors import ConfigError
from clew.models.columns import LABELS, Columns
from clew.recipe import Recipe

_TOLERANCE = 1e-9


def with_chosen_loss(recipe: Recipe, dataset: Dataset) -> tuple[Recipe, str]:
    """Return a recipe whose loss is set, and a line that says which loss was chosen and how to choose another.

    Integers, and numbers that are all 0 or 1, are classes. Other numbers are a regression.

    Args:
        recipe: The recipe. Only a model without a recipe (`Columns`) with the loss `auto` is changed.
        dataset: The dataset it is trained on.

    Returns:
        The recipe, and the line; the line is empty if nothing was chosen.
    """
    if type(recipe) is not Columns or recipe.config.loss != "auto" or LABELS not in dataset.manifest.columns:
        return recipe, ""
    if recipe.has_estimator:
        return _estimator_loss(recipe, dataset)
    field = dataset.manifest.columns[LABELS]
    values = _two_values(dataset.manifest.statistics.get(LABELS, {}))
    numbers = math.prod(field["shape"])
    if np.dtype(field["dtype"]).kind in "iub" or (values == (0.0, 1.0) and numbers == 1):
        what = "all labels are 0 or 1" if values == (0.0, 1.0) else "the labels are integers"
        config = recipe.config.model_copy(update={"loss": "cross_entropy"})
        chosen = Columns(config, model=recipe.model_object)
        other = '--loss mse (in Python loss="mse") trains a regression'
        return chosen, f"loss: cross_entropy, because {what}, which number classes; {other}"
    if recipe.probabilities:  # the last layer says that these are probabilities of classes
        return recipe, ""
    what, other = "the labels are numbers", "--loss mae or huber chooses another"
    if values == (0.0, 1.0):
        what = f"the labels are {numbers} numbers per event"
        other = "--loss cross_entropy is for one class per event, binary_cross_entropy for independent labels"
    elif values is not None:
        what, other = f"all labels are {values[0]:g} or {values[1]:g}", "for a classification, number classes 0 and 1"
    return recipe, f"loss: mse, because {what}; {other}"


def _estimator_loss(recipe: Columns, dataset: Dataset) -> tuple[Recipe, str]:
    """Return the recipe of an estimator with the loss of its kind. For a short name, the labels decide the kind.

    Raises:
        ConfigError: A classifier was chosen, and the labels are not classes.
    """
    from clew.models.estimators.lookup import LIBRARIES, is_classifier

    field = dataset.manifest.columns[LABELS]
    values = _two_values(dataset.manifest.statistics.get(LABELS, {}))
    classes = np.dtype(field["dtype"]).kind in "iub" or values == (0.0, 1.0)
    name = recipe.config.model.estimator
    classifier = classes if name in LIBRARIES else is_classifier(recipe.estimator())
    if classifier and not classes:
        raise ConfigError(f"{name} predicts classes, and the labels are other numbers; choose a regressor")
    loss = "cross_entropy" if classifier else "mse"
    what = "are classes" if classes else "are numbers"
    note = f"loss: {loss}, because the labels {what}" if name in LIBRARIES else ""
    other = f"; --loss {'mse trains a regression' if classifier else 'cross_entropy is for classes'}" if note else ""
    return Columns(recipe.config.model_copy(update={"loss": loss})), note + other


def _two_values(statistics: dict[str, Any]) -> tuple[float, float] | None:
    """Return the two values of a column, or None if it has more: (x - low) * (high - x) is 0 on average only then."""
    if not statistics or statistics["min"] == statistics["max"]:
        return None
    low, high, mean = statistics["min"], statistics["max"], statistics["mean"]
    squares = statistics["std"] ** 2 + mean**2
    between = (low + high) * mean - low * high - squares
    return (low, high) if abs(between) <= _TOLERANCE * (high - low) ** 2 else None
