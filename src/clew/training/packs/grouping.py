"""Which trainings go together in a pack, and why others cannot be packed."""

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

_ALIKE = ("dataset", "epochs", "steps", "minutes", "batch_size", "loading", "precision", "compile", "log_every")
"""Settings of train that all models of a pack share, besides the order of the data."""


def refusal(recipe: Recipe, config: TrainConfig) -> str:
    """Why a training cannot be part of a pack, by its settings; '' where they allow it."""
    reasons = {
        "the recipe has a step() of its own": type(recipe).step is not Recipe.step,
        "the recipe has optimizers() of its own": type(recipe).optimizers is not Recipe.optimizers,
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
    return next((told for told, wrong in reasons.items() if wrong), "") or optimizer.refusal(config)


def order_of(config: TrainConfig) -> int:
    """The seed of the order of the data."""
    return config.seed if config.order is None else config.order


def settings_key(recipe: Recipe, config: TrainConfig) -> str:
    """Trainings with another one cannot share a pack. Says nothing of shapes."""
    own = {name: value for name, value in flat(to_data(recipe.config)).items() if type(value) is not float}
    chosen = to_data(config)
    alike = [chosen[name] for name in _ALIKE]
    return json.dumps(
        [recipe.location, type(recipe).__qualname__, own, alike, order_of(config), optimizer.alike(config)]
    )


def model_of(recipe: Recipe, config: TrainConfig) -> nn.Module:
    """The model as its training would begin with it.

    Raises:
        ConfigError: its optimiser does not take these settings.
    """
    make_optimizer([nn.Parameter(torch.zeros(1))], config)
    torch.manual_seed(config.seed)
    made = recipe.model()
    return made if handed(recipe) is None else _anew(made)


def handed(recipe: Recipe) -> Any:
    """The model that was handed over in Python, if one was: one object, with weights already."""
    return recipe.model_object if isinstance(recipe, Columns) else None


def _anew(model: nn.Module) -> nn.Module:
    """A copy with fresh weights.

    Raises:
        ConfigError: a layer does not know how it begins.
    """
    made = copy.deepcopy(model)
    for layer in made.modules():
        begin: Any = getattr(layer, "reset_parameters", None)
        if begin is not None:
            begin()
        elif list(layer.parameters(recurse=False)):
            kind = type(layer).__name__
            raise ConfigError(f"{kind} has no reset_parameters(); give the model as file.py:name, to be made anew")
    return made


def model_refusal(model: nn.Module) -> str:
    """Why a model cannot be part of a pack; '' where nothing is seen that speaks against it."""
    if stacked_weights.shares_weights(model):
        return "layers of the model share weights"
    if any(isinstance(each, nn.RNNBase) for each in model.modules()):
        return "recurrent layers cannot be stacked"
    kinds = {each.dtype for each in model.parameters()}
    return "its weights are of several types" if len(kinds) != 1 else ""


def flat(data: Any, before: str = "") -> dict[str, Any]:
    """Settings by dotted key."""
    if not isinstance(data, Mapping):
        return {before: data}
    return {
        k: v for name, value in data.items() for k, v in flat(value, f"{before}.{name}" if before else name).items()
    }


def numbers(recipes: Sequence[Recipe]) -> dict[str, list[float]]:
    """Numbers of the recipes' own settings that differ between them, by dotted key."""
    each = [flat(to_data(recipe.config)) for recipe in recipes]
    return {key: [own[key] for own in each] for key in _floats(each[0]) if len({own[key] for own in each}) > 1}


def _floats(data: Mapping[str, Any]) -> Iterator[str]:
    return (key for key, value in data.items() if type(value) is float)


def with_numbers(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with other values (tensors among them) of its own settings; nothing is checked."""
    changed = object.__new__(type(recipe))
    vars(changed).update(vars(recipe))  # a copy would be made as for another process
    for key, value in values.items():
        changed.config = _set(changed.config, key.split("."), value)
    return changed


def _set(section: Any, names: list[str], value: Any) -> Any:
    own = value if len(names) == 1 else _set(_get(section, names[0]), names[1:], value)
    if isinstance(section, Mapping):
        return {**section, names[0]: own}
    return section.model_copy(update={names[0]: own})


def _get(section: Any, name: str) -> Any:
    return section[name] if isinstance(section, Mapping) else getattr(section, name)
