"""Batch normalisation over the whole batch, wherever its samples are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.modules.batchnorm import _BatchNorm

if TYPE_CHECKING:
    from clew.training.strategies.base import Strategy


class _Summed(torch.autograd.Function):
    """A sum over ranks, forward and backward."""

    @staticmethod
    def forward(ctx: FunctionCtx, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


class GlobalBatchNorm(_BatchNorm):
    """A batch norm whose mean and variance are those of all ranks' samples together; on any device.

    torch's own SyncBatchNorm runs on a few kinds of device only.
    """

    strategy: Strategy

    def _check_input_dim(self, input: Tensor) -> None:
        """Any shape (samples, features, ...)."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        inner = [0, *range(2, input.ndim)]
        mean, variance, count = global_moments(input, inner, float(input.numel() // input.shape[1]), self.strategy)
        self._remember(mean.detach(), variance.detach(), count.detach())
        shape = (1, -1, *[1] * (input.ndim - 2))
        out: Tensor = (input - mean.view(shape)) * torch.rsqrt(variance.view(shape) + self.eps)
        return out * self.weight.view(shape) + self.bias.view(shape) if self.affine else out

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        rate = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, rate)
        self.running_var.lerp_(variance * count / (count - 1).clamp(min=1), rate)


def global_moments(
    input: Tensor, inner: list[int], counted: float, strategy: Strategy
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance over the dimensions `inner`, and the number of values, of all ranks together; `counted` is the
    number of this one's."""
    values = input * float(strategy.counts)
    sums, squares = values.sum(inner), (values * values).sum(inner)
    own = torch.cat([sums, squares, values.new_tensor([counted * strategy.counts])])
    total: Tensor = _Summed.apply(own)  # type: ignore[no-untyped-call]
    count = total[-1].clamp(min=1)
    mean = total[: len(sums)] / count
    return mean, total[len(sums) : 2 * len(sums)] / count - mean * mean, count


def synchronize_batch_norm(model: nn.Module, strategy: Strategy) -> nn.Module:
    """The model with every batch norm in it turned into a global one, with the same parameters and buffers."""
    if isinstance(model, _BatchNorm) and not isinstance(model, GlobalBatchNorm):
        model.__class__ = GlobalBatchNorm  # in place: parameters stay the objects an optimiser may know
        object.__setattr__(model, "strategy", strategy)  # no submodule
    elif (adopt := getattr(model, "use_batch_moments", None)) is not None:  # layers of another framework
        adopt(partial(global_moments, strategy=strategy))
    for child in model.children():
        synchronize_batch_norm(child, strategy)
    return model
