"""Which trainings can share a pack, and why others cannot be packed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from clew.core.config import to_data
from clew.errors import ConfigError
from clew.models.columns import Columns
from clew.recipe import Recipe
from clew.training.config import TrainConfig
from clew.training.optimizer import make_optimizer
from clew.training.packs import optimizer, stacked_weights
from clew.training.validation import build_model

_SHARED_SETTINGS = (
    "dataset",
    "epochs",
    "steps",
    "minutes",
    "batch_size",
    "loading",
    "precision",
    "compile",
    "log_every",
)
"""Settings of `train` that all members of a pack share, besides the order of the samples."""


def refusal_reason(recipe: Recipe, config: TrainConfig) -> str:
    """Return why a training cannot be packed, judging by recipe and settings; '' if it can."""
    reasons = {
        "the recipe trains an estimator": recipe.has_estimator,
        "the recipe has a step() of its own": type(recipe).step is not Recipe.step,
        "the recipe has optimizers() of its own": type(recipe).optimizers is not Recipe.optimizers,
        "the recipe has hooks() of its own": type(recipe).hooks is not Recipe.hooks,
        "the recipe has no loss()": type(recipe).loss is Recipe.loss,
        f"train.workers is {config.workers}": config.workers != 1,
        f"train.strategy is {config.strategy}": config.traits.asynchronous,
        f"train.batch_size is {config.batch_size}": not isinstance(config.batch_size, int),
        f"train.accumulate is {config.accumulate}": config.accumulate != 1,
        "train.ema is set": config.ema is not None,
        f"train.precision is {config.precision}": config.precision != "float32",
        f"train.validation is {config.validation}": config.validation != "shared",
        "train.writers is set": bool(config.writers),
    }
    reason = next((reason for reason, applies in reasons.items() if applies), "")
    return reason or optimizer.refusal_reason(config)


def order_seed(config: TrainConfig) -> int:
    """Return the seed of the order of the samples."""
    return config.seed if config.order is None else config.order


def settings_key(recipe: Recipe, config: TrainConfig) -> str:
    """Return a key that trainings must share to be in one pack. It does not cover the shapes of their models."""
    settings = flat_settings(to_data(recipe.config))
    fixed = {name: value for name, value in settings.items() if type(value) is not float}
    data = to_data(config)
    shared = [data[name] for name in _SHARED_SETTINGS]
    recipe_name = [recipe.location, type(recipe).__qualname__]
    return json.dumps([*recipe_name, fixed, shared, order_seed(config), optimizer.shared_settings(config)])


def initial_model(recipe: Recipe, config: TrainConfig) -> nn.Module:
    """Return the model with the weights with which its training starts.

    Raises:
        ConfigError: The optimiser does not accept its settings.
    """
    make_optimizer([nn.Parameter(torch.zeros(1))], config)
    torch.manual_seed(config.seed)
    model = build_model(recipe, config.start_from)
    return model if config.start_from or model_object(recipe) is None else _reinitialized_copy(model)


def model_object(recipe: Recipe) -> Any:
    """Return the model if it was given as a Python object: it is one object, and already has weights."""
    return recipe.model_object if isinstance(recipe, Columns) else None


def _reinitialized_copy(model: nn.Module) -> nn.Module:
    """Return a copy with new weights.

    Raises:
        ConfigError: A layer cannot initialise its weights.
    """
    copied = copy.deepcopy(model)
    for layer in copied.modules():
        reset: Any = getattr(layer, "reset_parameters", None)
        if reset is not None:
            reset()
        elif list(layer.parameters(recurse=False)):
            kind = type(layer).__name__
            raise ConfigError(f"{kind} has no reset_parameters(); give the model as file.py:name, so it can be rebuilt")
    return copied


def model_refusal_reason(model: nn.Module) -> str:
    """Return why a model cannot be packed; '' if there is no obvious reason."""
    if stacked_weights.shares_weights(model):
        return "layers of the model share weights"
    if any(isinstance(layer, nn.RNNBase) for layer in model.modules()):
        return "recurrent layers cannot be stacked"
    types = {parameter.dtype for parameter in model.parameters()}
    return "its weights are of several types" if len(types) != 1 else ""


def flat_settings(data: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key."""
    if not isinstance(data, Mapping):
        return {prefix: data}
    return {
        key: value
        for name, inner in data.items()
        for key, value in flat_settings(inner, f"{prefix}.{name}" if prefix else name).items()
    }


def differing_numbers(recipes: Sequence[Recipe]) -> dict[str, list[float]]:
    """Return the numbers in the recipes' settings that differ between recipes, by dotted key."""
    settings = [flat_settings(to_data(recipe.config)) for recipe in recipes]
    return {
        key: [values[key] for values in settings]
        for key in _float_keys(settings[0])
        if len({values[key] for values in settings}) > 1
    }


def _float_keys(settings: Mapping[str, Any]) -> Iterator[str]:
    return (key for key, value in settings.items() if type(value) is float)


def with_numbers(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return the recipe with other values, tensors included, in its settings. Nothing is checked."""
    changed = object.__new__(type(recipe))
    vars(changed).update(vars(recipe))  # copy.copy would pickle it as for another process
    for key, value in values.items():
        changed.config = _set_value(changed.config, key.split("."), value)
    return changed


def _set_value(section: Any, names: list[str], value: Any) -> Any:
    inner = value if len(names) == 1 else _set_value(_get_value(section, names[0]), names[1:], value)
    if isinstance(section, Mapping):
        return {**section, names[0]: inner}
    return section.model_copy(update={names[0]: inner})


def _get_value(section: Any, name: str) -> Any:
    return section[name] if isinstance(section, Mapping) else getattr(section, name)
