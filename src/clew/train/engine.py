"""One training step: losses, gradients, optimisers. Knows no files and no epochs."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clew.dataset.batch import Batch
from clew.errors import ConfigError, RecipeError, nearest
from clew.recipe import Loss, Recipe
from clew.train.config import OPTIMIZERS, OptimizerConfig, TrainConfig
from clew.train.strategies import Strategy, Sum
from clew.train.trace import BACKWARD, COMMUNICATE, FORWARD, OPTIMISE, Trace

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Engine:
    """A model, its optimisers and the strategy, ready to take batches."""

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        config: TrainConfig,
        strategy: Strategy,
        device: torch.device,
        trace: Trace | None = None,
    ) -> None:
        self.trace = trace or Trace(None)
        self.recipe, self.model, self.strategy, self.clip = recipe, model, strategy, config.clip
        self.optimizers: dict[str, Optimizer] = {}
        self.parameters: dict[str, list[nn.Parameter]] = {}
        for name, given in recipe.optimizers(model).items():
            optimizer = given if isinstance(given, Optimizer) else make_optimizer(list(given), config)
            self.optimizers[name] = optimizer
            self.parameters[name] = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._lr = {n: [g["lr"] for g in o.param_groups] for n, o in self.optimizers.items()}
        wanting = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        strategy.whole = [{id(p) for p in own} for own in self.parameters.values()] == [wanting]
        self._factor = 1.0
        self._device, self._dtype = device, PRECISIONS.get(config.precision)
        if config.precision == "fp16" and config.strategy in ("sharded", "pipeline") and strategy.ranks > 1:
            raise ConfigError(f"train.precision fp16 cannot be used with {config.strategy}; use bf16")
        self.scaler = torch.amp.GradScaler(device.type) if config.precision == "fp16" else None
        self.average = Average(model, config.ema) if config.ema else None
        self._plain = len(self.optimizers) == 1 and config.precision == "float32" and config.ema is None

    def step(self, parts: Sequence[Batch]) -> dict[str, Sum]:
        """Learn from one batch, given in parts; each loss summed over all of them and all ranks.

        Raises:
            RecipeError: there is a loss without an optimiser, or an optimiser without a loss.
        """
        if len(parts) == 1 and self._plain:
            return self._step_plainly(parts[0])
        sums: dict[str, Sum] = {}
        last = len(parts) - 1
        for place, batch in enumerate(parts):
            self.strategy.counts = batch.counts
            for losses in self._losses(batch, alone=not last):
                sums.update(self._follow(losses, batch, last=place == last))
        if len(sums) != len(self.parameters):
            missing = next(iter(self.parameters.keys() - sums.keys()))
            raise RecipeError(f"step() gave no loss for the optimiser '{missing}'")
        if self.scaler is not None:
            self.scaler.update()
        if self.average is not None:
            self.average.update()
        return sums

    def _step_plainly(self, batch: Batch) -> dict[str, Sum]:
        """The same for the usual case: one loss, one optimiser, single precision; without what others need."""
        trace, strategy = self.trace, self.strategy
        now = time.perf_counter_ns if trace.live else _no_clock
        strategy.counts = batch.counts
        begun = now()
        losses = strategy.losses(self.recipe, self.model, batch)
        if not isinstance(losses, Mapping) or losses.keys() != self.parameters.keys():
            self._plain = False
            return self.step([batch])
        found = {name: as_loss(loss, batch) for name, loss in losses.items()}
        forward, talked = now(), strategy.waited
        sums = strategy.backward(found, self.parameters, last=True)
        backward = now()
        for name, optimizer in self.optimizers.items():
            if self.clip is not None:
                strategy.clip(self.parameters[name], self.clip)
            optimizer.step()
        if trace.live:
            apart = backward - int((strategy.waited - talked) * 1e9)
            trace.step((begun, forward, apart, backward, now()))
        return sums

    def rate(self, factor: float) -> None:
        """Set every learning rate to `factor` of what was configured."""
        if factor == self._factor:
            return
        self._factor = factor
        for name, optimizer in self.optimizers.items():
            for group, lr in zip(optimizer.param_groups, self._lr[name], strict=True):
                group["lr"] = lr * factor

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision of forward passes."""
        return _PLAIN if self._dtype is None else torch.autocast(self._device.type, self._dtype)

    def _losses(self, batch: Batch, *, alone: bool) -> Iterator[Mapping[str, Tensor | Loss]]:
        """What the recipe gives, a set at a time; each is followed before the next is computed."""
        begun = time.perf_counter_ns()
        with self.autocast():
            losses = self.strategy.losses(self.recipe, self.model, batch)
        if isinstance(losses, Mapping):
            self.trace.add(FORWARD, begun, time.perf_counter_ns())
            yield losses
            return
        if not alone:
            raise RecipeError("train.accumulate cannot be used with a step() that alternates between optimisers")
        pairs = iter(losses)
        while True:
            begun = time.perf_counter_ns()
            with self.autocast():
                pair = next(pairs, None)
            if pair is None:
                return
            self.trace.add(FORWARD, begun, time.perf_counter_ns())
            yield {pair[0]: pair[1]}

    def _follow(self, losses: Mapping[str, Tensor | Loss], batch: Batch, *, last: bool) -> dict[str, Sum]:
        for name in losses:
            if name not in self.parameters:
                raise RecipeError(f"step() gave a loss '{name}' but there is no optimiser of that name")
        own = self.parameters if len(losses) == len(self.parameters) else {n: self.parameters[n] for n in losses}
        found = {name: self._scaled(as_loss(loss, batch)) for name, loss in losses.items()}
        begun, talked = time.perf_counter_ns(), self.strategy.waited
        sums = self.strategy.backward(found, own, last=last)
        ended = time.perf_counter_ns()
        apart = ended - int((self.strategy.waited - talked) * 1e9)
        self.trace.add(BACKWARD, begun, apart)
        if apart < ended:
            self.trace.add(COMMUNICATE, apart, ended)
        if last:
            for name in losses:
                self._apply(name)
            self.trace.add(OPTIMISE, ended, time.perf_counter_ns())
        return sums if self.scaler is None else {name: self._unscaled(each) for name, each in sums.items()}

    def _apply(self, name: str) -> None:
        optimizer = self.optimizers[name]
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        if self.clip is not None:
            self.strategy.clip(self.parameters[name], self.clip)
        if self.scaler is not None:
            self.scaler.step(optimizer)
        else:
            optimizer.step()

    def _scaled(self, loss: Loss) -> Loss:
        return loss if self.scaler is None else Loss(self.scaler.scale(loss.total), loss.weight)

    def _unscaled(self, found: Sum) -> Sum:
        assert self.scaler is not None
        return Sum(found.total / self.scaler.scale(torch.ones_like(found.total)), found.weight)


_PLAIN = contextlib.nullcontext()


def _no_clock() -> int:
    return 0


class Average:
    """A moving average of a model's parameters; buffers are those of the model."""

    def __init__(self, model: nn.Module, memory: float) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._memory = memory
        self.values = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def update(self) -> None:
        """After a step."""
        torch._foreach_lerp_(self.values, [p.detach() for p in self._parameters], 1 - self._memory)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Within the block the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, value in zip(self._parameters, self.values, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(kept)


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


def make_optimizer(parameters: list[nn.Parameter], config: TrainConfig) -> Optimizer:
    """The named optimiser with the learning rate for this batch size, in its fused form where torch has one.

    Raises:
        ConfigError: a parameter that this optimiser does not have.
    """
    chosen = config.optimizer
    kind: type[Optimizer] = getattr(torch.optim, OPTIMIZERS[chosen.name])
    known = inspect.signature(kind).parameters.keys() - {"params", "lr", "weight_decay", "fused", "foreach"}
    for name in chosen.parameters.keys() - known:
        raise ConfigError(f"train.optimizer.parameters: {chosen.name} has no '{name}'{nearest(name, known)}")
    given: dict[str, Any] = {"lr": chosen.lr * scaling(chosen, config.size), **chosen.parameters}
    if "weight_decay" in inspect.signature(kind).parameters:
        given["weight_decay"] = chosen.weight_decay
    elif chosen.weight_decay:
        raise ConfigError(f"train.optimizer.weight_decay: {chosen.name} has none")
    if "fused" in inspect.signature(kind).parameters:
        given["fused"] = True
    try:
        return kind(parameters, **given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"train.optimizer: {chosen.name} does not take these settings ({error})") from error


def scaling(config: OptimizerConfig, batch_size: int) -> float:
    """By how much the learning rate follows the batch size."""
    if config.lr_batch is None or lr_rule(config) == "none":
        return 1.0
    ratio = batch_size / config.lr_batch
    return ratio if lr_rule(config) == "linear" else ratio**0.5


def lr_rule(config: OptimizerConfig) -> str:
    """The rule in use, with `auto` resolved."""
    if config.lr_rule != "auto":
        return config.lr_rule
    return "linear" if config.name == "sgd" else "sqrt"
