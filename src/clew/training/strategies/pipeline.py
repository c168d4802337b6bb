"""Pipeline parallelism: a model is divided into stages, one per rank, for models too large for one device.

Every rank gets every batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.optim import Optimizer

from clew.data.dataset.batch import Batch
from clew.errors import ConfigError, RecipeError
from clew.metrics import Metric
from clew.recipe import Loss, Recipe
from clew.training.strategies.base import Losses, LossSum, Parameters, divide_gradients
from clew.training.strategies.pipeline_stage import ModelStage, TrainingStage
from clew.training.strategies.process_group import SIGNALS, ProcessGroupStrategy
from clew.training.strategies.stage_graphs import Division, divide, keep_only


class Pipeline(ProcessGroupStrategy):
    """Stages of a model divided among the ranks. Micro-batches keep all ranks busy.

    A stage is a part of the entries of an `nn.Sequential`, or of any model between two of `train.split_points`. Losses
    and gradients are those of the complete batch. `Recipe.forward` must be a single call of the model on tensors, and
    return its result: this call is what is divided.
    """

    settings = ("microbatches", "split_points")
    splits_data = same_gradient = differentiates_loss = False

    def __init__(self, *, microbatches: int, split_points: Sequence[str] = (), **place: Any) -> None:
        super().__init__(**place)
        self._microbatches, self._split_points = microbatches, split_points
        self._schedules: dict[Any, tuple[ScheduleGPipe, list[tuple[Tensor, float]]]] = {}
        self._sent_signals = torch.zeros(SIGNALS, device=self.device)
        self._current: tuple[Recipe, Batch] | None = None
        self._names: list[str] = []
        """The parameters of the complete model."""
        self._own_names: dict[int, str] = {}
        """Those of this stage, by the identity of the parameter."""

    def distribute(self, model: nn.Module) -> nn.Module:
        training, evaluation = self._divide(model)
        super().distribute(model)
        self._names = [name for name, _ in model.named_parameters()]
        keep_only(model, training.owned_names(model)[self.rank])
        self._own_names = {id(parameter): name for name, parameter in model.named_parameters()}
        return ModelStage(model, self, training, evaluation)

    def losses(self, recipe: Recipe, model: nn.Module, batch: Batch) -> Losses:
        """Run forward and backward of the complete batch, one micro-batch after the other."""
        if type(recipe).step is not Recipe.step:
            raise RecipeError("train.strategy pipeline supports only recipes that define loss(), not step()")
        assert isinstance(model, ModelStage)
        inputs = _model_inputs(recipe, model, batch)
        self._current = (recipe, batch)
        for parameter in model.parameters():
            parameter.grad = None
        schedule, losses = self._schedule(model, inputs, batch.size)
        losses.clear()
        target = torch.arange(batch.size, device=self.device)
        schedule.step(
            **TrainingStage.prefixed(model.own_inputs(inputs)),
            return_outputs=False,
            **({"target": target} if self._is_last else {}),
        )
        total = sum((total for total, _ in losses), start=torch.zeros((), device=self.device))
        return {"loss": Loss(total, sum(weight for _, weight in losses))}

    def backward(self, losses: Mapping[str, Loss], parameters: Parameters, *, last: bool) -> dict[str, LossSum]:
        """Divide the gradients, which exist already, by the weight that the last stage knows."""
        if not last:
            raise ConfigError("train.accumulate cannot be used with pipeline; raise train.microbatches")
        ((name, own_parameters),) = parameters.items()
        signals = self._sent_signals
        self.write_signals(signals)
        signals[2], signals[3] = losses[name].total, losses[name].weight
        dist.all_reduce(signals)
        self._signals = signals.clone()
        for parameter in own_parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        divide_gradients(own_parameters, self._signals[3])
        return {name: LossSum(self._signals[2], self._signals[3])}

    def clip(self, parameters: Sequence[nn.Parameter], norm: float) -> None:
        squares = torch.zeros((), device=self.device)  # a stage may have no parameter that is trained
        squares += sum(p.grad.pow(2).sum() for p in parameters if p.grad is not None)
        dist.all_reduce(squares)
        nn.utils.clip_grads_with_norm_(parameters, norm, squares.sqrt())

    def average_buffers(self, model: nn.Module) -> None:
        """Do nothing: every buffer exists on one rank only."""

    def sum_metrics(self, metrics_of_rank: Mapping[str, Metric]) -> dict[str, Metric]:
        return dict(metrics_of_rank)  # every rank has evaluated all samples

    def full_weights(self, model: nn.Module) -> dict[str, Tensor]:
        assert isinstance(model, ModelStage)
        part = {name: tensor.detach().cpu() for name, tensor in model.stage.state_dict().items()}
        return dict(itertools.chain.from_iterable(part.items() for part in self.gather(part)))

    def load_weights(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        assert isinstance(model, ModelStage)
        model.stage.load_state_dict({name: state[name] for name in model.stage.state_dict()})

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state with parameters numbered as in the complete model."""
        parts, states = self.gather(_to_cpu(optimizer.state_dict())), {}
        all_numbers, count = self._numbers(optimizer)
        for part, numbers in zip(parts, all_numbers, strict=True):
            states.update({numbers[number]: state for number, state in part["state"].items()})
        groups = [{**parts[0]["param_groups"][0], "params": list(range(count))}]
        return {"state": dict(sorted(states.items())), "param_groups": groups}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        numbers = self._numbers(optimizer)[0][self.rank]
        own_state = {own: state["state"][number] for own, number in enumerate(numbers) if number in state["state"]}
        groups = [{**state["param_groups"][0], "params": list(range(len(numbers)))}]
        optimizer.load_state_dict({"state": own_state, "param_groups": groups})

    @property
    def _is_last(self) -> bool:
        return self.rank == self.ranks - 1

    def _divide(self, model: nn.Module) -> tuple[Division, Division]:
        """Return the division for training, and the same one for evaluation."""
        training = divide(model.train(), self._split_points, self.ranks)
        evaluation = divide(model.eval(), training.points, self.ranks)
        model.train()
        for stage, own, used in zip(
            itertools.count(1), *(d.owned_names(model) for d in (training, evaluation)), strict=False
        ):
            if used - own:
                raise ConfigError(
                    f"train.split_points: stage {stage} would use '{min(used - own)}' in evaluation and not in training"
                )
        return training, evaluation

    def _numbers(self, optimizer: Optimizer) -> tuple[list[list[int]], int]:
        """Return the numbers of the parameters of each rank in the complete optimiser, and how many it has.

        Raises:
            ConfigError: The optimiser has several groups of parameters.
        """
        if len(optimizer.param_groups) > 1:
            raise ConfigError("train.strategy pipeline supports optimisers with one group of parameters")
        names = self.gather([self._own_names[id(parameter)] for parameter in optimizer.param_groups[0]["params"]])
        order = sorted(itertools.chain.from_iterable(names), key=self._names.index)
        return [[order.index(name) for name in own] for own in names], len(order)

    def _schedule(self, model: ModelStage, inputs: Mapping[str, Tensor], size: int) -> Any:
        """Return the schedule for this shape of batch: a stage determines the shapes of its messages only once."""
        key = (size, *((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items()))
        if key not in self._schedules:
            parts = math.gcd(size, self._microbatches)  # equal parts, so that all messages have one shape
            received, out = model.shapes({name: tensor[: size // parts] for name, tensor in inputs.items()})
            place = (self.rank, self.ranks, self.device)
            stage = PipelineStage(TrainingStage(model), *place, input_args=received, output_args=out)
            losses: list[tuple[Tensor, float]] = []
            self._schedules[key] = (
                ScheduleGPipe(
                    stage,
                    parts,
                    loss_fn=lambda out, rows: self._loss(model.assemble(out), rows, losses),
                    scale_grads=False,
                ),
                losses,
            )
        return self._schedules[key]

    def _loss(self, outputs: Any, rows: Tensor, losses: list[tuple[Tensor, float]]) -> Tensor:
        from clew.training.engine import as_loss

        assert self._current is not None
        recipe, batch = self._current
        part = batch.rows(rows)
        total, weight = as_loss(recipe.loss(outputs, part), part)
        losses.append((total.detach(), float(weight)))
        return total


class _CallRecorder(nn.Module):
    """Replaces the model to record the arguments with which `Recipe.forward` calls it."""

    def forward(self, *inputs: Any, **named: Any) -> object:
        self.inputs, self.named = inputs, named
        return self


def _model_inputs(recipe: Recipe, model: ModelStage, batch: Batch) -> dict[str, Tensor]:
    """Return the tensors with which `Recipe.forward` calls its model, by the names of the arguments.

    Raises:
        RecipeError: `forward` does anything else.
    """
    recorder = _CallRecorder()
    try:
        returned = recipe.forward(recorder, batch)
    except Exception as error:
        raise RecipeError(f"train.strategy pipeline: forward() must only call the model; it failed: {error}") from error
    inputs = model.named_inputs(getattr(recorder, "inputs", ()), getattr(recorder, "named", {}))
    if returned is not recorder or not inputs or not all(isinstance(value, Tensor) for value in inputs.values()):
        raise RecipeError(
            "train.strategy pipeline: forward() must be one call of the model on tensors, as `return model(batch['x'])`"
        )
    for name, tensor in inputs.items():
        if tensor.shape[:1] != (batch.size,):
            raise RecipeError(
                f"train.strategy pipeline: argument '{name}' of the model must have one row per event; its shape is "
                f"{tuple(tensor.shape)} for {batch.size} events"
            )
    return inputs


def _to_cpu(state: dict[str, Any]) -> dict[str, Any]:
    moved = {n: {k: v.cpu() if isinstance(v, Tensor) else v for k, v in s.items()} for n, s in state["state"].items()}
    return {**state, "state": moved}
