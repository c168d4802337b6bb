"""One training step: losses, gradients, optimisers. Knows no files and no epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from clew.dataset.batch import Batch
from clew.errors import ConfigError, RecipeError
from clew.recipe import Loss, Recipe
from clew.train.config import OptimizerConfig, TrainConfig
from clew.train.strategies import Strategy


class Engine:
    """A model, its optimisers and the strategy, ready to take batches."""

    def __init__(self, recipe: Recipe, model: nn.Module, config: TrainConfig, strategy: Strategy) -> None:
        self.recipe, self.model, self.strategy, self.clip = recipe, model, strategy, config.clip
        self.optimizers: dict[str, Optimizer] = {}
        self.parameters: dict[str, list[nn.Parameter]] = {}
        for name, given in recipe.optimizers(model).items():
            optimizer = given if isinstance(given, Optimizer) else make_optimizer(list(given), config.optimizer)
            self.optimizers[name] = optimizer
            self.parameters[name] = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._lr = {n: [g["lr"] for g in o.param_groups] for n, o in self.optimizers.items()}

    def step(self, batch: Batch) -> Tensor:
        """Learn from one batch; (total, weight) of each loss over all ranks, in the order of the optimisers.

        Raises:
            RecipeError: there is a loss without an optimiser, or an optimiser without a loss.
        """
        losses = self.recipe.step(self.model, batch)
        sums: dict[str, Tensor] = {}
        for some in [losses] if isinstance(losses, Mapping) else ({name: loss} for name, loss in losses):
            sums.update(self._follow(some, batch))
        for name in self.parameters.keys() - sums.keys():
            raise RecipeError(f"step() gave no loss for the optimiser '{name}'")
        return torch.stack([sums[name] for name in self.parameters])

    def rate(self, factor: float) -> None:
        """Set every learning rate to `factor` of what was configured."""
        for name, optimizer in self.optimizers.items():
            for group, lr in zip(optimizer.param_groups, self._lr[name], strict=True):
                group["lr"] = lr * factor

    def _follow(self, losses: Mapping[str, Tensor | Loss], batch: Batch) -> dict[str, Tensor]:
        for name in losses.keys() - self.parameters.keys():
            raise RecipeError(f"step() gave a loss '{name}' but there is no optimiser of that name")
        own = {name: self.parameters[name] for name in losses}
        sums = self.strategy.backward({name: as_loss(loss, batch) for name, loss in losses.items()}, own)
        for name in losses:
            if self.clip is not None:
                nn.utils.clip_grad_norm_(self.parameters[name], self.clip)
            self.optimizers[name].step()
        return dict(zip(losses, sums, strict=True))


def as_loss(loss: Tensor | Loss, batch: Batch) -> Loss:
    """What a recipe may return, as a total and a weight. One loss an event is where event weights come in.

    Raises:
        RecipeError: a mean of unweighted losses while the events have weights: they would be ignored in silence.
    """
    if not batch.counts:
        return Loss((loss.total if isinstance(loss, Loss) else loss.sum()) * 0, 0.0)
    if isinstance(loss, Loss):
        return loss
    if loss.ndim == 0 and batch.weights is None:
        return Loss(loss * batch.size, float(batch.size))
    if loss.ndim == 0:
        raise RecipeError("events have weights, but loss() returned a mean; return one loss an event, or a clew.Loss")
    if loss.shape != (batch.size,):
        raise RecipeError(f"loss() returned shape {tuple(loss.shape)} for {batch.size} events; return one an event")
    return Loss((loss if batch.weights is None else loss * batch.weights).sum(), float(batch.size))


def make_optimizer(parameters: list[nn.Parameter], config: OptimizerConfig) -> Optimizer:
    """The named optimiser, in its fused form where torch has one.

    Raises:
        ConfigError: a setting that this optimiser does not have.
    """
    if config.momentum and config.name != "sgd":
        raise ConfigError(f"train.optimizer.momentum belongs to sgd, not to {config.name}")
    if config.name == "sgd":
        return SGD(parameters, config.lr, config.momentum, weight_decay=config.weight_decay, fused=True)
    kind = AdamW if config.name == "adamw" else Adam
    return kind(parameters, config.lr, weight_decay=config.weight_decay, fused=True)


def schedule(name: str, step: int, steps: int) -> float:
    """The learning rate at a step, as a share of the configured one."""
    if name == "cosine":
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / max(steps, 1)))
    return 1.0
