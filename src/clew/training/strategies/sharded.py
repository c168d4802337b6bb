"""Data parallelism in which every rank keeps only its part of weights, gradients and optimiser state (FSDP2)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from clew.errors import ConfigError, RecipeError
from clew.recipe import Loss
from clew.training.strategies.base import LossSum, Parameters, divide_gradients
from clew.training.strategies.batch_norm import synchronize_batch_norm
from clew.training.strategies.process_group import SIGNALS, ProcessGroupStrategy


class Sharded(ProcessGroupStrategy):
    """Weights are gathered block by block for a forward or backward pass and dropped again behind it.

    Blocks are the entries of `nn.Sequential` and `nn.ModuleList`; what is in none of them is one block.
    """

    alike = False

    def __init__(self, *, buffers: str = "average", **place: Any) -> None:
        super().__init__(**place)
        if self.crowded:
            raise ConfigError(
                "train.strategy sharded needs a device for every worker; there are fewer: use fewer workers"
            )
        self._synchronize = buffers == "synchronize"
        self._tail = torch.zeros(SIGNALS, device=self.device)
        self._model: FSDPModule | None = None

    def place(self, model: nn.Module) -> nn.Module:
        super().place(model)
        if self._synchronize:
            synchronize_batch_norm(model, self)
        for block in _blocks(model):
            fully_shard(block)
        self._model = fully_shard(model)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # sums: the division is by the weights of all ranks
                module.set_force_sum_reduction_for_comms(True)
        return model

    def backward(self, losses: Mapping[str, Loss], parameters: Parameters, *, last: bool) -> dict[str, LossSum]:
        """Backward of the total; gradients are summed and scattered by FSDP in the last part."""
        if len(parameters) > 1 or self._model is None:
            raise RecipeError("train.strategy sharded serves recipes with one loss; choose allreduce")
        ((name, own),) = parameters.items()
        total, weight = losses[name]
        if name not in self._sums:
            self._tail.zero_()
            for parameter in own:
                parameter.grad = None
        self.tell(self._tail)
        self._tail[2] += total.detach()
        self._tail[3] += weight
        self._sums[name] = LossSum(self._tail[2], self._tail[3])
        self._model.set_requires_gradient_sync(last)
        torch.autograd.backward(total)
        return self._sum_up(own) if last else {}

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        return {name: _whole(tensor) for name, tensor in model.state_dict().items()}

    def fill(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        there = model.state_dict()
        model.load_state_dict({name: _part(tensor, there[name]) for name, tensor in state.items()})

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        found = optimizer.state_dict()
        state = {n: {key: _whole(value) for key, value in each.items()} for n, each in found["state"].items()}
        return {**found, "state": state}

    def fill_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        parts = {
            n: {key: _part(value, own[n]) if _like(value, own[n]) else value for key, value in each.items()}
            for n, each in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": parts})

    def _sum_up(self, own: Any) -> dict[str, LossSum]:
        begun = time.perf_counter()
        dist.all_reduce(self._tail)
        self.waited += time.perf_counter() - begun
        self._told = self._tail.clone()
        for parameter in own:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        divide_gradients(own, self._told[3])
        return {name: LossSum(self._told[2], self._told[3]) for name in self._finished()}


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost entries of lists and sequences that hold parameters and can be called."""
    found = []
    for child in model.children():
        if isinstance(model, (nn.Sequential, nn.ModuleList)) and not isinstance(child, nn.ModuleList):
            found += [child] if any(True for _ in child.parameters()) else []
        else:
            found += _blocks(child)
    return found


def _whole(value: Any) -> Any:
    """A tensor gathered from all ranks; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def _part(value: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor, laid out as `like` is."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _like(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape
