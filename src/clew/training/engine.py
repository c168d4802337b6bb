"""One training step: losses, gradients, optimisers. Knows no files and no epochs."""

from __future__ import annotations

import contextlib
import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clew.data.dataset.batch import Batch
from clew.errors import ConfigError, RecipeError, nearest
from clew.recipe import Loss, Recipe
from clew.training.config import OPTIMIZERS, OptimizerConfig, TrainConfig
from clew.training.step_recorder import StepRecorder, can_record
from clew.training.strategies import LossSum, Strategy
from clew.training.timeline_writer import TimelineWriter

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
        trace: TimelineWriter | None = None,
        *,
        build: Callable[[list[nn.Parameter], TrainConfig], Optimizer] | None = None,
    ) -> None:
        """`build`: makes the optimisers of named parameters, instead of the settings."""
        self.trace = trace or TimelineWriter(None)
        self.recipe, self.model, self.strategy, self.clip = recipe, model, strategy, config.clip
        self.optimizers: dict[str, Optimizer] = {}
        self.parameters: dict[str, list[nn.Parameter]] = {}
        for name, given in recipe.optimizers(model).items():
            optimizer = given if isinstance(given, Optimizer) else (build or make_optimizer)(list(given), config)
            self.optimizers[name] = optimizer
            self.parameters[name] = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._lr = {n: [g["lr"] for g in o.param_groups] for n, o in self.optimizers.items()}
        wanting = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        strategy.whole = [{id(p) for p in own} for own in self.parameters.values()] == [wanting]
        self._factor = 1.0
        self._device, self._dtype = device, PRECISIONS.get(config.precision)
        if config.precision == "fp16" and not strategy.alike:
            raise ConfigError(f"train.precision fp16 cannot be used with {config.strategy}; use bf16")
        self.scaler = torch.amp.GradScaler(device.type) if config.precision == "fp16" else None
        self.average = WeightAverage(model, config.ema) if config.ema else None
        self._recorder: StepRecorder | None = None
        if can_record(config, strategy, device):
            self._recorder = StepRecorder(self._descend, [each for own in self.parameters.values() for each in own])

    def step(self, parts: Sequence[Batch]) -> dict[str, LossSum]:
        """Learn from one batch, given in parts; each loss summed over all of them and all ranks.

        Raises:
            RecipeError: there is a loss without an optimiser, or an optimiser without a loss.
        """
        recorded = self._recorder is not None and len(parts) == 1 and parts[0].room is not None
        sums = self._replay(parts[0]) if recorded else self._compute(parts)
        if len(sums) != len(self.parameters):
            missing = next(iter(self.parameters.keys() - sums.keys()))
            raise RecipeError(f"step() gave no loss for the optimiser '{missing}'")
        if self.scaler is not None:
            self.scaler.update()
        if self.average is not None:
            self.average.update()
        return sums

    def _compute(self, parts: Sequence[Batch]) -> dict[str, LossSum]:
        sums: dict[str, LossSum] = {}
        last = len(parts) - 1
        for place, batch in enumerate(parts):
            self.strategy.counts = batch.counts
            begun = time.perf_counter_ns()
            with self.autocast():
                losses = self.strategy.losses(self.recipe, self.model, batch)
            if isinstance(losses, Mapping):
                sums.update(self._follow(losses, batch, begun, last=place == last))
            elif last:
                raise RecipeError("train.accumulate cannot be used with a step() that alternates between optimisers")
            else:
                self._alternate(losses, batch, sums)
        return sums

    def _replay(self, batch: Batch) -> dict[str, LossSum]:
        """By a recording of forward and backward; what the optimisers do stays as it is."""
        assert self._recorder is not None
        begun = time.perf_counter_ns()
        sums = self._recorder.learn(batch)
        learned = time.perf_counter_ns()
        for name in sums:
            self._apply(name)
        if self.trace.live:
            self.trace.step((begun, learned, learned, learned, time.perf_counter_ns()))
        return sums

    def _descend(self, batch: Batch) -> dict[str, LossSum]:
        """Forward and backward of a batch, as they are recorded."""
        with self.autocast():
            losses = self.strategy.losses(self.recipe, self.model, batch)
        if not isinstance(losses, Mapping):
            raise RecipeError("a step() that alternates between optimisers cannot be recorded: room() must be None")
        return self.strategy.backward(*self._found(losses, batch), last=True)

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

    def _alternate(self, losses: Iterable[tuple[str, Tensor | Loss]], batch: Batch, sums: dict[str, LossSum]) -> None:
        """Each loss is followed before the next is computed."""
        pairs = iter(losses)
        while True:
            begun = time.perf_counter_ns()
            with self.autocast():
                pair = next(pairs, None)
            if pair is None:
                return
            sums.update(self._follow({pair[0]: pair[1]}, batch, begun, last=True))

    def _follow(
        self, losses: Mapping[str, Tensor | Loss], batch: Batch, begun: int, *, last: bool
    ) -> dict[str, LossSum]:
        """Backward of losses whose forward pass `begun`, and, in the last part of a batch, the optimisers' steps."""
        strategy = self.strategy
        found, own = self._found(losses, batch)
        forward, talked = time.perf_counter_ns(), strategy.waited
        sums = strategy.backward(found, own, last=last)
        backward = time.perf_counter_ns()
        if last:
            for name in losses:
                self._apply(name)
        if self.trace.live:
            apart = backward - int((strategy.waited - talked) * 1e9)
            self.trace.step((begun, forward, apart, backward, time.perf_counter_ns()))
        return sums if self.scaler is None else {name: self._unscaled(each) for name, each in sums.items()}

    def _found(
        self, losses: Mapping[str, Tensor | Loss], batch: Batch
    ) -> tuple[dict[str, Loss], Mapping[str, list[nn.Parameter]]]:
        """Losses as totals and weights, and the parameters that follow each."""
        parameters = self.parameters
        for name in losses:
            if name not in parameters:
                raise RecipeError(f"step() gave a loss '{name}' but there is no optimiser of that name")
        own = parameters if len(losses) == len(parameters) else {name: parameters[name] for name in losses}
        return {name: self._scaled(as_loss(loss, batch)) for name, loss in losses.items()}, own

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

    def _unscaled(self, found: LossSum) -> LossSum:
        assert self.scaler is not None
        return LossSum(found.total / self.scaler.scale(torch.ones_like(found.total)), found.weight)


_PLAIN = contextlib.nullcontext()


class WeightAverage:
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
    factor = batch_size_scaling(chosen, config.size) * worker_scaling(config)
    given: dict[str, Any] = {"lr": chosen.lr * factor, **chosen.parameters}
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


def batch_size_scaling(config: OptimizerConfig, batch_size: int) -> float:
    """By how much the learning rate follows the batch size."""
    if config.lr_batch is None or lr_rule(config) == "none":
        return 1.0
    ratio = batch_size / config.lr_batch
    return ratio if lr_rule(config) == "linear" else ratio**0.5


def worker_scaling(config: TrainConfig) -> float:
    """By how much the rate is larger where the steps of all workers are averaged: as for a batch as large as theirs.

    There a batch is one worker's, and the average of their steps would be as small as one worker's with less noise.
    """
    rule = lr_rule(config.optimizer)
    if not config.traits.averages_steps or rule == "none":
        return 1.0
    return float(max(1, config.workers) if rule == "linear" else math.sqrt(max(1, config.workers)))


def lr_rule(config: OptimizerConfig) -> str:
    """The rule in use, with `auto` resolved."""
    if config.lr_rule != "auto":
        return config.lr_rule
    return "linear" if config.name == "sgd" else "sqrt"
