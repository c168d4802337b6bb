"""What workers send under `asynchronous.updates: auto`: gradients for the master's optimiser, or their own steps.

The master has one optimiser for all parameters. It can replace the optimisers of the workers only if these would all
be the same: built from `train.optimizer`, each parameter in one of them, one step of each per batch. An adversarial
recipe is different: its step alternates, so the second step of a critic needs the weights after the first.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from clew.data.dataset.batch import Batch
from clew.errors import ConfigError, RecipeError
from clew.recipe import Recipe, TrainingPlan
from clew.training.asynchronous.rules import make_rule
from clew.training.config import TrainConfig
from clew.training.strategies import Strategy
from clew.training.strategies.base import Losses


def with_update_kind(recipe: Recipe, config: TrainConfig) -> TrainConfig:
    """Return the settings with `asynchronous.updates` resolved. Every process of a training gets the same result.

    Args:
        recipe: The recipe to train.
        config: The settings of an asynchronous training.

    Raises:
        ConfigError: The settings ask for gradients, but the recipe needs steps of its own optimisers.
    """
    if not make_rule(config).sends_gradients:
        return config
    reason = reason_for_steps(recipe)
    if config.asynchronous.updates == "gradients" and reason:
        raise ConfigError(
            f"asynchronous.updates gradients cannot be used with {type(recipe).__name__}: {reason}; use steps or auto"
        )
    settings = config.asynchronous.model_copy(update={"updates": "steps" if reason else "gradients"})
    return config.model_copy(update={"asynchronous": settings})


def reason_for_steps(recipe: Recipe) -> str:
    """Return why one optimiser of the master cannot replace those of a recipe; empty if it can."""
    if inspect.isgeneratorfunction(recipe.step):
        return "step() alternates between optimisers"
    if type(recipe).optimizers is Recipe.optimizers:
        return ""
    with torch.random.fork_rng(devices=[]):
        model = recipe.model()
    recipe.hooks(model, TrainingPlan(asynchronous=True))
    parameters: list[nn.Parameter] = []
    for name, choice in recipe.optimizers(model).items():
        if isinstance(choice, Optimizer):
            return f"optimizers() returns an optimiser of its own for '{name}'"
        parameters += choice
    if not _each_once(model, parameters):
        return "its optimisers do not have every parameter exactly once"
    return ""


def _each_once(model: nn.Module, chosen: Iterable[nn.Parameter]) -> bool:
    trainable = sorted(id(parameter) for parameter in model.parameters() if parameter.requires_grad)
    return sorted(id(parameter) for parameter in chosen if parameter.requires_grad) == trainable


class GradientsOnly(Strategy):
    """For a worker that sends gradients: it takes no step, so a step that alternates would lose all but the last."""

    def losses(self, recipe: Recipe, model: nn.Module, batch: Batch) -> Losses:
        losses = super().losses(recipe, model, batch)
        if not hasattr(losses, "keys"):
            raise RecipeError(
                f"step() of {type(recipe).__name__} alternates between optimisers, and the workers send gradients; "
                "set train.asynchronous.updates=steps, or write step() with yield"
            )
        return losses
