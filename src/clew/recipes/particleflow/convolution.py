"""The graph convolution within bins, with an explicit gradient.

A bin of n elements has distance features x and messages v. Its affinity matrix is A = exp(-0.1 |x_i - x_j|), with
values in [0, 1], and its degrees D are the sums of the rows of A. The result is D^-1/2 A D^-1/2 v. A is symmetric.
Therefore the gradient of v is the same product again, and the gradient of x needs one product instead of the two of
automatic differentiation. On a CPU bins are processed one by one at their true lengths, so that A stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from clew.recipes.particleflow.binning import BinLayout

DECAY = 0.1
EPSILON = 1e-6
"""Smallest squared distance and degree: the derivative of the square root diverges at 0."""


def gather_bins(values: Tensor, order: Tensor, layout: BinLayout) -> Tensor:
    """Copy rows (stacks, elements, f) to bins (stacks * bins, size, f). Empty slots hold the row of some element."""
    flat: Tensor = _Gather.apply(values, order, layout)  # type: ignore[no-untyped-call]
    return flat


def scatter_bins(bins: Tensor, order: Tensor, layout: BinLayout) -> Tensor:
    """Copy bins (stacks * bins, size, f) back to rows (stacks, elements, f)."""
    rows: Tensor = _Scatter.apply(bins, order, layout)  # type: ignore[no-untyped-call]
    return rows


def convolve(distance: Tensor, messages: Tensor, layout: BinLayout, *, batched: bool | None = None) -> Tensor:
    """Return D^-1/2 A D^-1/2 v of each bin, (stacks * bins, size, f).

    Args:
        distance: Distance features x (stacks * bins, size, d).
        messages: v (stacks * bins, size, f).
        layout: The bins of the batch.
        batched: Process all bins at once, with empty slots masked. Default: everywhere but on a CPU.
    """
    dtype = torch.promote_types(distance.dtype, torch.float32)
    batched = distance.device.type != "cpu" if batched is None else batched
    with torch.autocast(distance.device.type, enabled=False):
        x, v = distance.to(dtype), messages.to(dtype)
        result: Tensor = _Convolve.apply(x, v, layout, batched)  # type: ignore[no-untyped-call]
    return result.to(messages.dtype)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, order: Tensor, layout: BinLayout) -> Tensor:
        ctx.layout = layout
        ctx.save_for_backward(order)
        return _to_bins(values, order, layout)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return _to_rows(gradients[0], order, ctx.layout), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bins: Tensor, order: Tensor, layout: BinLayout) -> Tensor:
        ctx.layout = layout
        ctx.save_for_backward(order)
        return _to_rows(bins, order, layout)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        bins = _to_bins(gradients[0], order, ctx.layout)
        return bins.mul_(_occupied(ctx.layout, bins)), None, None


def _to_bins(values: Tensor, order: Tensor, layout: BinLayout) -> Tensor:
    stacks, _, width = values.shape
    source = order.new_zeros(stacks, layout.bins * layout.size)
    source[:, layout.slot] = order
    stacked = [part.index_select(0, rows) for part, rows in zip(values, source, strict=True)]
    return torch.cat(stacked).view(stacks * layout.bins, layout.size, width)


def _to_rows(bins: Tensor, order: Tensor, layout: BinLayout) -> Tensor:
    parts = bins.reshape(len(order), layout.bins * layout.size, bins.shape[-1])
    place = torch.empty_like(order).scatter_(1, order, layout.slot.expand_as(order))
    return torch.stack([part.index_select(0, rows) for part, rows in zip(parts, place, strict=True)])


def _occupied(layout: BinLayout, bins: Tensor) -> Tensor:
    mask = layout.mask.to(bins.dtype).unsqueeze(-1)
    return mask.repeat(len(bins) // layout.bins, 1, 1)


def _bin_groups(layout: BinLayout, count: int, batched: bool) -> Iterator[tuple[slice, int]]:
    """Yield the bins that are processed together, and how many of their slots."""
    if batched:
        yield slice(0, count), layout.size
        return
    for place in range(count):
        yield slice(place, place + 1), layout.filled[place % layout.bins]


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, distance: Tensor, messages: Tensor, layout: BinLayout, batched: bool) -> Tensor:
        result, saved = torch.zeros_like(messages), list[Tensor]()
        mask = layout.mask.repeat(len(distance) // layout.bins, 1) if batched else None
        for group, n in _bin_groups(layout, len(distance), batched):
            x, v = distance[group, :n], messages[group, :n]
            affinity, slope = _affinity(x, mask)
            norm = (affinity.sum(dim=-1, keepdim=True) + EPSILON).rsqrt_()
            norm = norm if mask is None else norm * mask.unsqueeze(-1)
            torch.mul(torch.bmm(affinity, v * norm), norm, out=result[group, :n])
            saved += [affinity, slope, norm]
        ctx.layout, ctx.batched = layout, batched
        ctx.save_for_backward(distance, messages, result, *saved)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        distance, messages, result, *saved = ctx.saved_tensors
        dx, dv = torch.zeros_like(distance), torch.zeros_like(messages)
        for place, (group, n) in enumerate(_bin_groups(ctx.layout, len(distance), ctx.batched)):
            affinity, slope, norm = saved[3 * place : 3 * place + 3]
            x, v = distance[group, :n], messages[group, :n] * norm
            dy, y = gradients[0][group, :n], result[group, :n]
            dy_norm = dy * norm
            dv_norm = torch.bmm(affinity, dy_norm)
            ddegree = (dy * y).sum(dim=-1, keepdim=True).add_((dv_norm * v).sum(dim=-1, keepdim=True))
            ddegree.mul_(norm).mul_(norm).mul_(-0.5)
            torch.mul(dv_norm, norm, out=dv[group, :n])
            daffinity = torch.bmm(dy_norm, v.transpose(1, 2)).add_(ddegree)
            daffinity = (daffinity + daffinity.transpose(1, 2)).mul_(slope)
            dx[group, :n] = torch.baddbmm(x * daffinity.sum(dim=-1, keepdim=True), daffinity, x, alpha=-1)
        return dx, dv, None, None


def _affinity(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return A, and dA/d(distance) / distance, which is zero where the distance is zero."""
    square = (x * x).sum(dim=-1)
    distance = square.unsqueeze(2) + square.unsqueeze(1)
    distance.baddbmm_(x, x.transpose(1, 2), alpha=-2).clamp_(min=EPSILON).sqrt_()
    affinity = (distance * -DECAY).exp_()
    if mask is not None:
        affinity.mul_(mask.unsqueeze(1)).mul_(mask.unsqueeze(2))
    slope = torch.div(affinity, distance).mul_(-DECAY)
    slope.masked_fill_(distance <= EPSILON**0.5, 0)
    return affinity, slope
