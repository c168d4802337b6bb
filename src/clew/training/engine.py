"""One training step: losses, gradients, optimisers. This module knows nothing of files and epochs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clew.data.dataset.batch import Batch
from clew.errors import ConfigError, RecipeError
from clew.recipe import Loss, Recipe, TakenSteps, TrainingPlan
from clew.recipe_errors import method_place, wrong_return
from clew.training.config import TrainConfig
from clew.training.optimizer import make_optimizer
from clew.training.step_recorder import StepRecorder, can_record
from clew.training.strategies import LossSum, Strategy
from clew.training.timeline_writer import TimelineWriter

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NO_AUTOCAST = contextlib.nullcontext()
MakeOptimizer = Callable[[list[nn.Parameter], TrainConfig], Optimizer]


class Engine:
    """A model, its optimisers and the strategy. `step` trains on one batch.

    The training loop and the asynchronous worker both use it. A pack of models has its own engine
    (`clew.training.packs.engine`), which trains all of them in one step.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        config: TrainConfig,
        strategy: Strategy,
        device: torch.device,
        trace: TimelineWriter | None = None,
        *,
        build: MakeOptimizer = make_optimizer,
        plan: TrainingPlan | None = None,
    ) -> None:
        """Make the optimisers.

        Args:
            recipe: The recipe, which computes losses and names the parameters of each optimiser.
            model: The model, on `device`.
            config: The settings.
            strategy: How ranks combine their gradients.
            device: Where the model computes.
            trace: The timeline of this rank.
            build: Makes an optimiser for parameters that the recipe names.
            plan: What is known about the training, for hooks of the recipe.
        """
        self.trace = trace or TimelineWriter(None)
        self.recipe, self.model, self.strategy, self.clip = recipe, model, strategy, config.clip
        self.hooks = recipe.hooks(model, plan or TrainingPlan())
        self.optimizers: dict[str, Optimizer] = {}
        self.parameters: dict[str, list[nn.Parameter]] = {}
        for name, choice in recipe.optimizers(model).items():
            optimizer = choice if isinstance(choice, Optimizer) else build(list(choice), config)
            self.optimizers[name] = optimizer
            self.parameters[name] = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._configured_lr = {n: [g["lr"] for g in o.param_groups] for n, o in self.optimizers.items()}
        trainable = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        strategy.single_optimizer = [{id(p) for p in group} for group in self.parameters.values()] == [trainable]
        self._lr_factor = 1.0
        self._device, self._dtype = device, PRECISIONS.get(config.precision)
        if config.precision == "fp16" and not strategy.same_gradient:
            raise ConfigError(f"train.precision fp16 cannot be used with {config.strategy}; use bf16")
        self.scaler = torch.amp.GradScaler(device.type) if config.precision == "fp16" else None
        self.average = WeightAverage(model, config.ema) if config.ema else None
        self.recorder: StepRecorder | None = None
        if can_record(config, strategy, device):
            parameters = [parameter for group in self.parameters.values() for parameter in group]
            self.recorder = StepRecorder(self.forward_backward, parameters)
        self.hooks.attach(self.backward)

    def step(self, parts: Sequence[Batch]) -> Mapping[str, LossSum | Loss]:
        """Train on one batch.

        Args:
            parts: The batch, in one or more parts (`train.accumulate`).

        Returns:
            Each loss, summed over all parts and ranks.

        Raises:
            RecipeError: There is a loss without an optimiser, or an optimiser without a loss.
        """
        recorded = self.recorder is not None and len(parts) == 1 and parts[0].capacity is not None and parts[0].counts
        sums = self._replay(parts[0]) if recorded else self._compute(parts)
        if len(sums) != len(self.parameters) and not isinstance(sums, TakenSteps):
            missing = next(iter(self.parameters.keys() - sums.keys()))
            raise RecipeError(f"step() returned no loss for the optimiser '{missing}'")
        if self.scaler is not None:
            self.scaler.update()
        if self.average is not None:
            self.average.update()
        return sums

    def backward(self, loss: Tensor, batch: Batch) -> Loss:
        """Add the gradient of a loss to all parameters, summed over all ranks, as `loss.backward()` in one process.

        Args:
            loss: The mean over the events of a batch.
            batch: The batch.

        Returns:
            The loss, summed over all ranks.
        """
        strategy, weight = self.strategy, float(batch.size) if batch.counts else 0.0
        mean = Loss(loss * weight, weight)
        if strategy.ranks == 1:
            loss.backward()  # type: ignore[no-untyped-call]
            return Loss(mean.total.detach(), weight)
        parameters = [parameter for group in self.parameters.values() for parameter in group]
        before = [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters]
        strategy.single_optimizer = True  # some parameters may not require a gradient now, and cannot be named
        summed = strategy.backward({"loss": mean}, {"loss": parameters}, last=True)["loss"]
        for parameter, earlier in zip(parameters, before, strict=True):
            if not parameter.requires_grad:
                parameter.grad = earlier
            elif earlier is not None and parameter.grad is not None:
                parameter.grad = parameter.grad + earlier
        return Loss(*summed)

    def rate(self, factor: float) -> None:
        """Set every learning rate to `factor` times the configured one."""
        if factor == self._lr_factor:
            return
        self._lr_factor = factor
        for name, optimizer in self.optimizers.items():
            for group, lr in zip(optimizer.param_groups, self._configured_lr[name], strict=True):
                group["lr"] = lr * factor

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context that sets the precision of forward passes."""
        return _NO_AUTOCAST if self._dtype is None else torch.autocast(self._device.type, self._dtype)

    def _compute(self, parts: Sequence[Batch]) -> Mapping[str, LossSum | Loss]:
        sums: dict[str, LossSum] = {}
        last = len(parts) - 1
        for number, batch in enumerate(parts):
            self.strategy.batch_counts = batch.counts
            start = time.perf_counter_ns()
            with self.autocast():
                losses = self.strategy.losses(self.recipe, self.model, batch)
            if isinstance(losses, TakenSteps):
                return losses
            if isinstance(losses, Mapping):
                sums.update(self._update(losses, batch, start, last=number == last))
            elif last:
                raise RecipeError("train.accumulate cannot be used with a step() that alternates between optimisers")
            else:
                self._alternate(losses, batch, sums)
        return sums

    def _replay(self, batch: Batch) -> dict[str, LossSum]:
        """Replay recorded forward and backward passes. The optimisers' steps are not recorded."""
        assert self.recorder is not None
        step: dict[str, LossSum] = {}
        self.strategy.batch_counts = True
        self.strategy.start_recorded_step()
        start = time.perf_counter_ns()
        for sums_of_rank in self.recorder.run(batch):
            computed, communicated = time.perf_counter_ns(), self.strategy.communication_seconds
            parameters = {name: self.parameters[name] for name in sums_of_rank}
            sums = self.strategy.combine_recorded(sums_of_rank, parameters)
            combined = computed + int((self.strategy.communication_seconds - communicated) * 1e9)
            for name in sums:
                self._apply(name)
            step.update(sums)
            if self.trace.live:
                self.trace.step((start, computed, computed, combined, time.perf_counter_ns()))
            start = time.perf_counter_ns()
        return step

    def forward_backward(self, batch: Batch) -> Iterator[dict[str, LossSum]]:
        """Run forward and backward of a batch in the form that is recorded. Yield the sums of each part of the step."""
        with self.autocast():
            losses = self.strategy.losses(self.recipe, self.model, batch)
        for part in [losses] if isinstance(losses, Mapping) else self._pairs(losses):
            yield self.strategy.record_backward(*self._prepare_losses(part, batch))

    def _pairs(self, losses: Iterable[tuple[str, Tensor | Loss]]) -> Iterator[Mapping[str, Tensor | Loss]]:
        """Yield each loss of a step that alternates. It is computed when the optimiser before it has stepped."""
        pairs = iter(losses)
        while True:
            with self.autocast():
                pair = next(pairs, None)
            if pair is None:
                return
            yield {pair[0]: pair[1]}

    def _alternate(self, losses: Iterable[tuple[str, Tensor | Loss]], batch: Batch, sums: dict[str, LossSum]) -> None:
        """Apply each loss before the next one is computed."""
        start = time.perf_counter_ns()
        for pair in self._pairs(losses):
            sums.update(self._update(pair, batch, start, last=True))
            start = time.perf_counter_ns()

    def _update(
        self, losses: Mapping[str, Tensor | Loss], batch: Batch, start: int, *, last: bool
    ) -> dict[str, LossSum]:
        """Run backward and, in the last part of a batch, the optimisers.

        Args:
            losses: The losses.
            batch: The part of the batch.
            start: When its forward pass started, in nanoseconds.
            last: Whether it is the last part.
        """
        strategy = self.strategy
        scaled, parameters = self._prepare_losses(losses, batch)
        forward_end, communicated = time.perf_counter_ns(), strategy.communication_seconds
        sums = strategy.backward(scaled, parameters, last=last)
        backward_end = time.perf_counter_ns()
        if last:
            for name in losses:
                self._apply(name)
        if self.trace.live:
            compute_end = backward_end - int((strategy.communication_seconds - communicated) * 1e9)
            self.trace.step((start, forward_end, compute_end, backward_end, time.perf_counter_ns()))
        return sums if self.scaler is None else {name: self._unscale(each) for name, each in sums.items()}

    def _prepare_losses(
        self, losses: Mapping[str, Tensor | Loss], batch: Batch
    ) -> tuple[dict[str, Loss], Mapping[str, list[nn.Parameter]]]:
        """Return losses as totals and weights, and the parameters of each."""
        parameters = self.parameters
        for name, loss in losses.items():
            if name not in parameters:
                raise RecipeError(f"step() returned a loss '{name}', but there is no optimiser of that name")
            total: Any = loss.total if isinstance(loss, Loss) else loss
            if not isinstance(total, Tensor):
                raise wrong_return(self.recipe, "step", f"a {type(total).__name__} for '{name}'")
            if not total.requires_grad and batch.counts and self.strategy.differentiates_loss:
                raise RecipeError(
                    f"{self._loss_place()}: the loss has no gradient; compute it from the model's outputs"
                )
        used = parameters if len(losses) == len(parameters) else {name: parameters[name] for name in losses}
        return {name: self._scale(as_loss(loss, batch)) for name, loss in losses.items()}, used

    def _loss_place(self) -> str:
        """Return the place of the method that computes the losses."""
        return method_place(self.recipe, "loss" if type(self.recipe).step is Recipe.step else "step")

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

    def _scale(self, loss: Loss) -> Loss:
        return loss if self.scaler is None else Loss(self.scaler.scale(loss.total), loss.weight)

    def _unscale(self, loss: LossSum) -> LossSum:
        assert self.scaler is not None
        return LossSum(loss.total / self.scaler.scale(torch.ones_like(loss.total)), loss.weight)


class WeightAverage:
    """An exponential moving average of the parameters of a model. Buffers are not averaged."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._decay = decay
        self.values = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights after a step."""
        torch._foreach_lerp_(self.values, [p.detach() for p in self._parameters], 1 - self._decay)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Give the model the averaged weights during the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, value in zip(self._parameters, self.values, strict=True):
            current = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(current)


def as_loss(loss: Tensor | Loss, batch: Batch) -> Loss:
    """Return what a recipe returned as a total and a weight. Event weights are applied to one loss per event.

    Args:
        loss: A `clew.Loss`, a mean (no dimensions), or one value per event of shape (events,).
        batch: The batch.

    Raises:
        RecipeError: The loss is a mean, but the events have weights, which would be ignored.
    """
    if not batch.counts:
        return Loss((loss.total if isinstance(loss, Loss) else loss.sum()) * 0, 0.0)
    if isinstance(loss, Loss):
        return loss
    if loss.ndim == 0 and batch.weights is None:
        return Loss(loss * batch.size, float(batch.size))
    if loss.ndim == 0:
        raise RecipeError("events have weights, but loss() returned a mean; return one loss per event, or a clew.Loss")
    if loss.shape != (batch.size,):
        raise RecipeError(
            f"loss() returned shape {tuple(loss.shape)} for {batch.size} events; return one value per event"
        )
    return Loss((loss if batch.weights is None else loss * batch.weights).sum(), float(batch.size))
