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
from clew.training.strategies.process_group import SIGNALS, ProcessGroupStrategy

_TYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
"""Types of tensors that stages send each other; the same order on all ranks."""
_LAYOUT_SIZE = 18


class Pipeline(ProcessGroupStrategy):
    """Stages (entries of an `nn.Sequential`) divided among the ranks. Micro-batches keep all ranks busy.

    Losses and gradients are those of the complete batch. `Recipe.forward` must be a single call of the model on
    tensors, and return its result: this call is what is divided.
    """

    settings = ("microbatches",)
    splits_data = same_gradient = differentiates_loss = False

    def __init__(self, *, microbatches: int, **place: Any) -> None:
        super().__init__(**place)
        self._microbatches = microbatches
        self._schedules: dict[Any, tuple[ScheduleGPipe, list[tuple[Tensor, float]]]] = {}
        self._sent_signals = torch.zeros(SIGNALS, device=self.device)
        self._current: tuple[Recipe, Batch] | None = None

    def distribute(self, model: nn.Module) -> nn.Module:
        if not isinstance(model, nn.Sequential) or len(model) < self.ranks:
            kind = f"{type(model).__name__} of {len(list(model.children()))} parts"
            raise ConfigError(
                f"train.strategy pipeline needs an nn.Sequential of {self.ranks} or more entries; the model is a {kind}"
            )
        super().distribute(model)
        bounds = _stage_bounds([sum(p.numel() for p in layer.parameters()) for layer in model], self.ranks)
        first, last = bounds[self.rank], bounds[self.rank + 1]
        for name in [name for name, _ in model.named_children() if not first <= int(name) < last]:
            delattr(model, name)  # the remaining layers keep their names in the complete model
        return _Stage(model, self)

    def losses(self, recipe: Recipe, model: nn.Module, batch: Batch) -> Losses:
        """Run forward and backward of the complete batch, one micro-batch after the other."""
        if type(recipe).step is not Recipe.step:
            raise RecipeError("train.strategy pipeline supports only recipes that define loss(), not step()")
        assert isinstance(model, _Stage)
        inputs = _model_inputs(recipe, batch)
        self._current = (recipe, batch)
        for parameter in model.parameters():
            parameter.grad = None
        schedule, losses = self._schedule(model, inputs, batch.size)
        losses.clear()
        target = torch.arange(batch.size, device=self.device)
        schedule.step(*(inputs if self.rank == 0 else ()), **({"target": target} if self._is_last else {}))
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
        squares = torch.stack([p.grad.pow(2).sum() for p in parameters if p.grad is not None]).sum()
        dist.all_reduce(squares)
        nn.utils.clip_grads_with_norm_(parameters, norm, squares.sqrt())

    def average_buffers(self, model: nn.Module) -> None:
        """Do nothing: every buffer exists on one rank only."""

    def sum_metrics(self, metrics_of_rank: Mapping[str, Metric]) -> dict[str, Metric]:
        return dict(metrics_of_rank)  # every rank has evaluated all samples

    def full_weights(self, model: nn.Module) -> dict[str, Tensor]:
        assert isinstance(model, _Stage)
        part = {name: tensor.detach().cpu() for name, tensor in model.stage.state_dict().items()}
        return dict(itertools.chain.from_iterable(part.items() for part in self.gather(part)))

    def load_weights(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        assert isinstance(model, _Stage)
        model.stage.load_state_dict({name: state[name] for name in model.stage.state_dict()})

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state with parameters numbered as in the complete model."""
        parts, states, count = self.gather(_to_cpu(optimizer.state_dict())), {}, 0
        for part in parts:
            states.update({number + count: state for number, state in part["state"].items()})
            count += len(part["param_groups"][0]["params"])
        groups = [{**parts[0]["param_groups"][0], "params": list(range(count))}]
        return {"state": states, "param_groups": groups}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        counts = self.gather(sum(len(group["params"]) for group in optimizer.param_groups))
        first, count = sum(counts[: self.rank]), counts[self.rank]
        own_state = {n - first: value for n, value in state["state"].items() if first <= n < first + count}
        groups = [{**state["param_groups"][0], "params": list(range(count))}]
        optimizer.load_state_dict({"state": own_state, "param_groups": groups})

    @property
    def _is_last(self) -> bool:
        return self.rank == self.ranks - 1

    def _schedule(self, model: _Stage, inputs: Sequence[Tensor], size: int) -> Any:
        """Return the schedule for this shape of batch: a stage determines the shapes of its messages only once."""
        key = (size, *((tensor.shape, tensor.dtype) for tensor in inputs))
        if key not in self._schedules:
            parts = math.gcd(size, self._microbatches)  # equal parts, so that all messages have one shape
            examples, out = model.shapes(*(tensor[: size // parts] for tensor in inputs))
            stage = PipelineStage(model.stage, self.rank, self.ranks, self.device, input_args=examples, output_args=out)
            losses: list[tuple[Tensor, float]] = []
            self._schedules[key] = (
                ScheduleGPipe(stage, parts, loss_fn=lambda out, rows: self._loss(out, rows, losses), scale_grads=False),
                losses,
            )
        return self._schedules[key]

    def _loss(self, outputs: Tensor, rows: Tensor, losses: list[tuple[Tensor, float]]) -> Tensor:
        from clew.training.engine import as_loss

        assert self._current is not None
        recipe, batch = self._current
        part = batch.rows(rows)
        total, weight = as_loss(recipe.loss(outputs, part), part)
        losses.append((total.detach(), float(weight)))
        return total


class _Stage(nn.Module):
    """The stage of this rank.

    When it is called outside a training step, it passes a batch through all stages and gives the output of the last
    stage to every rank, so that each rank can evaluate it.
    """

    def __init__(self, stage: nn.Module, strategy: Pipeline) -> None:
        super().__init__()
        self.stage = stage
        self._strategy = strategy

    def forward(self, *inputs: Tensor) -> Tensor:
        rank, ranks, device = self._strategy.rank, self._strategy.ranks, self._strategy.device
        _, out = self._run_stage(inputs)
        layout = _layout(out)
        dist.broadcast(layout, ranks - 1)
        result = out.contiguous() if rank == ranks - 1 else _empty(layout, device)
        dist.broadcast(result, ranks - 1)
        return result

    def shapes(self, *inputs: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the inputs and the output of this stage for these inputs of the first stage, without any training."""
        was_training = self.training
        self.eval()
        with torch.no_grad():
            own_inputs, out = self._run_stage(inputs)
        self.train(was_training)
        later = self._strategy.rank > 0
        return tuple(tensor.detach().requires_grad_(later) for tensor in own_inputs), out.detach().requires_grad_()

    def _run_stage(self, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the inputs and the output of this stage, and send the output to the next stage."""
        rank, ranks = self._strategy.rank, self._strategy.ranks
        if rank > 0:
            inputs = (_receive(rank - 1, self._strategy.device),)
        out: Tensor = self.stage(*inputs)
        if rank < ranks - 1:
            _send(out, rank + 1)
        return inputs, out


def _send(tensor: Tensor, to: int) -> None:
    dist.send(_layout(tensor), to)
    dist.send(tensor.contiguous(), to)


def _receive(source: int, device: torch.device) -> Tensor:
    layout = torch.zeros(_LAYOUT_SIZE, dtype=torch.int64)
    dist.recv(layout, source)
    tensor = _empty(layout, device)
    dist.recv(tensor, source)
    return tensor


def _layout(tensor: Tensor) -> Tensor:
    """Return type, number of dimensions and shape of a tensor as numbers."""
    values = [_TYPES.index(tensor.dtype), tensor.dim(), *tensor.shape]
    return torch.tensor(values + [0] * (_LAYOUT_SIZE - len(values)))


def _empty(layout: Tensor, device: torch.device) -> Tensor:
    dtype, dimensions, *shape = layout.tolist()
    return torch.empty(shape[:dimensions], dtype=_TYPES[dtype], device=device)


class _InputRecorder(nn.Module):
    """Replaces the model to record the tensors with which `Recipe.forward` calls it."""

    def forward(self, *inputs: Any) -> object:
        self.inputs = inputs
        return self


def _model_inputs(recipe: Recipe, batch: Batch) -> tuple[Tensor, ...]:
    """Return the tensors with which `Recipe.forward` calls its model.

    Raises:
        RecipeError: `forward` does anything else.
    """
    recorder = _InputRecorder()
    try:
        returned = recipe.forward(recorder, batch)
    except Exception as error:
        raise RecipeError(f"train.strategy pipeline: forward() must only call the model; it failed: {error}") from error
    inputs = getattr(recorder, "inputs", ())
    if returned is not recorder or not inputs or not all(isinstance(value, Tensor) for value in inputs):
        raise RecipeError(
            "train.strategy pipeline: forward() must be one call of the model on tensors, as `return model(batch['x'])`"
        )
    return tuple(inputs)


def _stage_bounds(sizes: Sequence[int], parts: int) -> list[int]:
    """Return the bounds of `parts` runs of layers, with a similar number of parameters each. None is empty."""
    total, bounds, done = sum(sizes), [0], 0
    for layer, size in enumerate(sizes):
        left, needed = len(sizes) - layer, parts - len(bounds)
        if layer > bounds[-1] and needed and (done >= total * len(bounds) / parts - size / 2 or left == needed):
            bounds.append(layer)
        done += size
    return [*bounds, len(sizes)]


def _to_cpu(state: dict[str, Any]) -> dict[str, Any]:
    moved = {n: {k: v.cpu() if isinstance(v, Tensor) else v for k, v in s.items()} for n, s in state["state"].items()}
    return {**state, "state": moved}
