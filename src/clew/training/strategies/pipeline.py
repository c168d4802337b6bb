"""A model cut into stages, one a rank: for models too large for one device. Every rank sees every batch."""

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


class Pipeline(ProcessGroupStrategy):
    """A chain of stages (the entries of an `nn.Sequential`) over ranks; micro-batches keep all of them busy.

    Losses and gradients are those of the whole batch. The recipe's `forward` must be a single call of the model on
    tensors, whose result it returns: the call is what is cut.
    """

    replicas = alike = False

    def __init__(self, *, microbatches: int, **place: Any) -> None:
        super().__init__(**place)
        self._microbatches = microbatches
        self._schedules: dict[Any, tuple[ScheduleGPipe, list[tuple[Tensor, float]]]] = {}
        self._tail = torch.zeros(SIGNALS, device=self.device)
        self._work: tuple[Recipe, Batch] | None = None

    def place(self, model: nn.Module) -> nn.Module:
        if not isinstance(model, nn.Sequential) or len(model) < self.ranks:
            kind = f"{type(model).__name__} of {len(list(model.children()))} parts"
            raise ConfigError(
                f"train.strategy pipeline cuts an nn.Sequential of at least {self.ranks} entries; the model is a {kind}"
            )
        super().place(model)
        bounds = _cuts([sum(p.numel() for p in layer.parameters()) for layer in model], self.ranks)
        first, last = bounds[self.rank], bounds[self.rank + 1]
        for name in [name for name, _ in model.named_children() if not first <= int(name) < last]:
            delattr(model, name)  # the names of those that stay are the whole model's
        return _Chain(model, self)

    def losses(self, recipe: Recipe, model: nn.Module, batch: Batch) -> Losses:
        """Forward and backward of the whole batch, micro-batch by micro-batch."""
        if type(recipe).step is not Recipe.step:
            raise RecipeError("train.strategy pipeline serves recipes with a plain loss, not with a step of their own")
        assert isinstance(model, _Chain)
        inputs = _called_with(recipe, batch)
        self._work = (recipe, batch)
        for parameter in model.parameters():
            parameter.grad = None
        schedule, found = self._schedule(model, inputs, batch.size)
        found.clear()
        target = torch.arange(batch.size, device=self.device)
        schedule.step(*(inputs if self.rank == 0 else ()), **({"target": target} if self._is_last else {}))
        total = sum((total for total, _ in found), start=torch.zeros((), device=self.device))
        return {"loss": Loss(total, sum(weight for _, weight in found))}

    def backward(self, losses: Mapping[str, Loss], parameters: Parameters, *, last: bool) -> dict[str, LossSum]:
        """The gradients are there; what is left is to divide them by the weight that the last stage knows."""
        if not last:
            raise ConfigError("train.accumulate cannot be used with pipeline; raise train.microbatches")
        ((name, own),) = parameters.items()
        self.tell(self._tail)
        self._tail[2], self._tail[3] = losses[name].total, losses[name].weight
        dist.all_reduce(self._tail)
        self._told = self._tail.clone()
        for parameter in own:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        divide_gradients(own, self._told[3])
        return {name: LossSum(self._told[2], self._told[3])}

    def clip(self, parameters: Sequence[nn.Parameter], norm: float) -> None:
        squares = torch.stack([p.grad.pow(2).sum() for p in parameters if p.grad is not None]).sum()
        dist.all_reduce(squares)
        nn.utils.clip_grads_with_norm_(parameters, norm, squares.sqrt())

    def agree(self, model: nn.Module) -> None:
        """Every buffer is on one rank alone."""

    def add(self, tallies: Mapping[str, Metric]) -> dict[str, Metric]:
        return dict(tallies)  # every rank has seen everything

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        assert isinstance(model, _Chain)
        own = {name: tensor.detach().cpu() for name, tensor in model.stage.state_dict().items()}
        return dict(itertools.chain.from_iterable(part.items() for part in self.gather(own)))

    def fill(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        assert isinstance(model, _Chain)
        model.stage.load_state_dict({name: state[name] for name in model.stage.state_dict()})

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Parameters are numbered through the stages, as those of the whole model would be."""
        parts, states, count = self.gather(_to_cpu(optimizer.state_dict())), {}, 0
        for part in parts:
            states.update({number + count: each for number, each in part["state"].items()})
            count += len(part["param_groups"][0]["params"])
        groups = [{**parts[0]["param_groups"][0], "params": list(range(count))}]
        return {"state": states, "param_groups": groups}

    def fill_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        counts = self.gather(sum(len(group["params"]) for group in optimizer.param_groups))
        before, own = sum(counts[: self.rank]), counts[self.rank]
        mine = {n - before: each for n, each in state["state"].items() if before <= n < before + own}
        groups = [{**state["param_groups"][0], "params": list(range(own))}]
        optimizer.load_state_dict({"state": mine, "param_groups": groups})

    @property
    def _is_last(self) -> bool:
        return self.rank == self.ranks - 1

    def _schedule(self, model: _Chain, inputs: Sequence[Tensor], size: int) -> Any:
        """Stages learn the shapes of what they send once, so there is one schedule for every shape of batch."""
        key = (size, *((tensor.shape, tensor.dtype) for tensor in inputs))
        if key not in self._schedules:
            parts = math.gcd(size, self._microbatches)  # equal parts: one shape on the wire
            given, out = model.shapes(*(tensor[: size // parts] for tensor in inputs))
            stage = PipelineStage(model.stage, self.rank, self.ranks, self.device, input_args=given, output_args=out)
            found: list[tuple[Tensor, float]] = []
            self._schedules[key] = (
                ScheduleGPipe(stage, parts, loss_fn=lambda out, rows: self._loss(out, rows, found), scale_grads=False),
                found,
            )
        return self._schedules[key]

    def _loss(self, outputs: Tensor, rows: Tensor, found: list[tuple[Tensor, float]]) -> Tensor:
        from clew.training.engine import as_loss

        assert self._work is not None
        recipe, batch = self._work
        part = batch.rows(rows)
        total, weight = as_loss(recipe.loss(outputs, part), part)
        found.append((total.detach(), float(weight)))
        return total


class _Chain(nn.Module):
    """This rank's stage. Called outside of a training step, it passes a batch down all stages and hands the last
    one's output to every rank, so that each can judge it."""

    def __init__(self, stage: nn.Module, strategy: Pipeline) -> None:
        super().__init__()
        self.stage = stage
        self._strategy = strategy

    def forward(self, *inputs: Tensor) -> Tensor:
        rank, ranks, device = self._strategy.rank, self._strategy.ranks, self._strategy.device
        _, out = self._passed(inputs)
        shape: list[Any] = [list(out.shape), out.dtype] if rank == ranks - 1 else [None, None]
        dist.broadcast_object_list(shape, ranks - 1)
        result = out.contiguous() if rank == ranks - 1 else torch.empty(shape[0], dtype=shape[1], device=device)
        dist.broadcast(result, ranks - 1)
        return result

    def shapes(self, *inputs: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """What this stage takes and gives for such inputs of the first; found without learning anything."""
        was = self.training
        self.eval()
        with torch.no_grad():
            given, out = self._passed(inputs)
        self.train(was)
        later = self._strategy.rank > 0
        return tuple(tensor.detach().requires_grad_(later) for tensor in given), out.detach().requires_grad_()

    def _passed(self, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        """This stage's inputs and output, the next one's being sent on."""
        rank, ranks = self._strategy.rank, self._strategy.ranks
        if rank > 0:
            inputs = (_receive(rank - 1, self._strategy.device),)
        out: Tensor = self.stage(*inputs)
        if rank < ranks - 1:
            _send(out, rank + 1)
        return inputs, out


def _send(tensor: Tensor, to: int) -> None:
    dist.send_object_list([list(tensor.shape), tensor.dtype], to)
    dist.send(tensor.contiguous(), to)


def _receive(source: int, device: torch.device) -> Tensor:
    facts: list[Any] = [None, None]
    dist.recv_object_list(facts, source)
    tensor = torch.empty(facts[0], dtype=facts[1], device=device)
    dist.recv(tensor, source)
    return tensor


class _Called(nn.Module):
    """Stands in for the model to see what `forward` hands it."""

    def forward(self, *inputs: Any) -> object:
        self.inputs = inputs
        return self


def _called_with(recipe: Recipe, batch: Batch) -> tuple[Tensor, ...]:
    """The tensors the recipe's `forward` calls its model on.

    Raises:
        RecipeError: it does anything else.
    """
    asked = _Called()
    try:
        returned = recipe.forward(asked, batch)
    except Exception as error:
        raise RecipeError(f"train.strategy pipeline: forward() must only call the model; it failed: {error}") from error
    inputs = getattr(asked, "inputs", ())
    if returned is not asked or not inputs or not all(isinstance(each, Tensor) for each in inputs):
        raise RecipeError(
            "train.strategy pipeline: forward() must be one call of the model on tensors, as `return model(batch['x'])`"
        )
    return tuple(inputs)


def _cuts(sizes: Sequence[int], parts: int) -> list[int]:
    """Bounds of `parts` runs of layers with about as many parameters each, none empty."""
    total, bounds, done = sum(sizes), [0], 0
    for place, size in enumerate(sizes):
        left, needed = len(sizes) - place, parts - len(bounds)
        if place > bounds[-1] and needed and (done >= total * len(bounds) / parts - size / 2 or left == needed):
            bounds.append(place)
        done += size
    return [*bounds, len(sizes)]


def _to_cpu(state: dict[str, Any]) -> dict[str, Any]:
    moved = {n: {k: v.cpu() if isinstance(v, Tensor) else v for k, v in s.items()} for n, s in state["state"].items()}
    return {**state, "state": moved}
