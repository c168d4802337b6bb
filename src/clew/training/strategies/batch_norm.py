"""Batch normalisation over the global batch, whichever ranks hold its samples."""

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


class _SumOverRanks(torch.autograd.Function):
    """A sum over ranks, in the forward and in the backward pass."""

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
    """A batch norm that uses mean and variance of the samples of all ranks. It runs on any device.

    SyncBatchNorm of torch runs only on some kinds of device.
    """

    strategy: Strategy

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any shape (samples, features, ...)."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        dimensions = [0, *range(2, input.ndim)]
        values = float(input.numel() // input.shape[1])
        mean, variance, count = global_moments(input, dimensions, values, self.strategy)
        self._update_running_statistics(mean.detach(), variance.detach(), count.detach())
        shape = (1, -1, *[1] * (input.ndim - 2))
        out: Tensor = (input - mean.view(shape)) * torch.rsqrt(variance.view(shape) + self.eps)
        return out * self.weight.view(shape) + self.bias.view(shape) if self.affine else out

    @torch.no_grad()
    def _update_running_statistics(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        rate = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, rate)
        self.running_var.lerp_(variance * count / (count - 1).clamp(min=1), rate)


def global_moments(
    input: Tensor, dimensions: list[int], values: float, strategy: Strategy
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute mean and variance over the samples of all ranks.

    Args:
        input: The values of this rank.
        dimensions: The dimensions over which to average.
        values: The number of values of this rank per feature.
        strategy: The strategy; it knows whether the current batch counts.

    Returns:
        Mean, variance, and the number of values of all ranks.
    """
    counted = input * float(strategy.batch_counts)
    sums, squares = counted.sum(dimensions), (counted * counted).sum(dimensions)
    local = torch.cat([sums, squares, counted.new_tensor([values * strategy.batch_counts])])
    total: Tensor = _SumOverRanks.apply(local)  # type: ignore[no-untyped-call]
    count = total[-1].clamp(min=1)
    mean = total[: len(sums)] / count
    return mean, total[len(sums) : 2 * len(sums)] / count - mean * mean, count


def synchronize_batch_norm(model: nn.Module, strategy: Strategy) -> nn.Module:
    """Turn every batch norm of a model into a global one, with the same parameters and buffers."""
    if isinstance(model, _BatchNorm) and not isinstance(model, GlobalBatchNorm):
        model.__class__ = GlobalBatchNorm  # in place: an optimiser may already hold the parameters
        object.__setattr__(model, "strategy", strategy)  # it must not become a submodule
    elif (use_moments := getattr(model, "use_batch_moments", None)) is not None:  # layers of another framework
        use_moments(partial(global_moments, strategy=strategy))
    for child in model.children():
        synchronize_batch_norm(child, strategy)
    return model
