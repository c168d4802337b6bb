"""Data parallelism in which every rank holds only its part of weights, gradients and optimiser state (FSDP2)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch._dynamo  # fully_shard imports it, which takes two seconds: do so before the workers fork
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from clew.errors import ConfigError, RecipeError
from clew.recipe import Loss
from clew.training.strategies.base import LossSum, Parameters, divide_gradients
from clew.training.strategies.batch_norm import synchronize_batch_norm
from clew.training.strategies.process_group import SIGNALS, ProcessGroupStrategy


class Sharded(ProcessGroupStrategy):
    """Weights are gathered block by block for a forward or backward pass, and released afterwards.

    Blocks are the entries of `nn.Sequential` and `nn.ModuleList`. Everything else forms one block. If the recipe's
    `step` alternates between optimisers, each network in the model is a model by itself: `step` calls them one by one.
    """

    settings = ("buffers",)
    same_gradient = False

    def __init__(self, *, buffers: str = "average", **place: Any) -> None:
        super().__init__(**place)
        if self.shares_device:
            raise ConfigError(
                "train.strategy sharded needs one device per worker; there are fewer devices: use fewer workers"
            )
        self.synchronizes_buffers = buffers == "synchronize"
        self._sent_signals = torch.zeros(SIGNALS, device=self.device)
        self._networks: list[FSDPModule] = []

    def distribute(self, model: nn.Module) -> nn.Module:
        super().distribute(model)
        if self.synchronizes_buffers:
            synchronize_batch_norm(model, self)
        networks = _find_networks(model) if self.alternates else [model]
        for part in (*_find_blocks(model), *networks):
            part.register_forward_hook(_copy_views)  # before fully_shard, which watches what this returns
            fully_shard(part)
        self._networks = [network for network in networks if isinstance(network, FSDPModule)]
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # sums: they are divided by the weights of all ranks
                module.set_force_sum_reduction_for_comms(True)
        return model

    def backward(self, losses: Mapping[str, Loss], parameters: Parameters, *, last: bool) -> dict[str, LossSum]:
        """Run backward of the total. In the last part, FSDP sums and scatters the gradients."""
        if len(parameters) > 1 or not self._networks:
            raise RecipeError("train.strategy sharded supports only one loss at a time; write step() with yield")
        ((name, own_parameters),) = parameters.items()
        total, weight = losses[name]
        signals = self._sent_signals
        if name not in self._sums:
            signals.zero_()
            for parameter in own_parameters:
                parameter.grad = None
        self.write_signals(signals)
        signals[2] += total.detach()
        signals[3] += weight
        self._sums[name] = LossSum(signals[2], signals[3])
        for network in self._networks:
            network.set_requires_gradient_sync(last)
        torch.autograd.backward(total)
        return self._sum_over_ranks(own_parameters) if last else {}

    def full_weights(self, model: nn.Module) -> dict[str, Tensor]:
        return {name: _gather_tensor(tensor) for name, tensor in model.state_dict().items()}

    def load_weights(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        current = model.state_dict()
        model.load_state_dict({name: _own_part(tensor, current[name]) for name, tensor in state.items()})

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        state = optimizer.state_dict()
        values = {n: {key: _gather_tensor(value) for key, value in item.items()} for n, item in state["state"].items()}
        return {**state, "state": values}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        parts = {
            n: {
                key: _own_part(value, parameters[n]) if _has_shape_of(value, parameters[n]) else value
                for key, value in item.items()
            }
            for n, item in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": parts})

    def _sum_over_ranks(self, parameters: Sequence[nn.Parameter]) -> dict[str, LossSum]:
        start = time.perf_counter()
        dist.all_reduce(self._sent_signals)
        self.communication_seconds += time.perf_counter() - start
        self._signals = self._sent_signals.clone()
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        divide_gradients(parameters, self._signals[3])
        return {name: LossSum(self._signals[2], self._signals[3]) for name in self._take_sums()}


def _find_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the outermost entries of lists and sequences that have parameters and can be called."""
    blocks = []
    for child in model.children():
        if isinstance(model, (nn.Sequential, nn.ModuleList)) and not isinstance(child, nn.ModuleList):
            blocks += [child] if any(True for _ in child.parameters()) else []
        else:
            blocks += _find_blocks(child)
    return blocks


def _copy_views(_module: nn.Module, _inputs: Any, output: Any) -> Any:
    """Return the output without views: a loss that changes a view in place would lose the hook that gathers weights."""
    return tree_map_only(Tensor, lambda tensor: tensor.clone() if tensor._is_view() else tensor, output)


def _find_networks(model: nn.Module) -> list[nn.Module]:
    """Return the parts of a model that `step` may call; the model itself if it is one network.

    Raises:
        RecipeError: A model of several networks has parameters outside of them.
    """
    parts = [child for child in model.children() if any(True for _ in child.parameters())]
    if isinstance(model, nn.Sequential) or len(parts) < 2:
        return [model]
    if any(True for _ in model.parameters(recurse=False)):
        raise RecipeError("train.strategy sharded needs every parameter of the model in one of its networks")
    return parts


def _gather_tensor(value: Any) -> Any:
    """Return a distributed tensor as a complete one; anything else unchanged."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def _own_part(value: Tensor, like: Tensor) -> Tensor:
    """Return the part of a complete tensor that this rank holds, with the layout of `like`."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _has_shape_of(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape
