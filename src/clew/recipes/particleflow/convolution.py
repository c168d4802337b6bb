"""The graph convolution within bins, with its gradient written out.

A bin of n elements with distance features x and messages v has the kernel A = exp(-0.1 |x_i - x_j|), which lies in
[0, 1], degrees d = sum of rows, and gives D^-1/2 A D^-1/2 v. The kernel is symmetric, so the gradient of v is the same
product again, and that of x needs one product instead of the two that automatic differentiation takes. On a CPU bins go
one by one, at their true lengths: what is computed of a kernel stays in cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from clew.recipes.particleflow.binning import Layout

STEEP = 0.1
LEAST = 1e-6
"""Of squared distances and degrees: where roots have no slope."""


def gathered(values: Tensor, order: Tensor, layout: Layout) -> Tensor:
    """Rows (stacks, elements, f) in the places of bins (stacks * bins, size, f); empty places hold some element's."""
    flat: Tensor = _Gather.apply(values, order, layout)  # type: ignore[no-untyped-call]
    return flat


def spread(bins: Tensor, order: Tensor, layout: Layout) -> Tensor:
    """Bins (stacks * bins, size, f) back to rows (stacks, elements, f)."""
    rows: Tensor = _Spread.apply(bins, order, layout)  # type: ignore[no-untyped-call]
    return rows


def convolve(distance: Tensor, messages: Tensor, layout: Layout, *, together: bool | None = None) -> Tensor:
    """D^-1/2 A D^-1/2 v in each bin: features (stacks * bins, size, d), messages (stacks * bins, size, f).

    `together`: all bins at once, empty places masked; if not given, on anything but a CPU.
    """
    wide = torch.promote_types(distance.dtype, torch.float32)
    together = distance.device.type != "cpu" if together is None else together
    with torch.autocast(distance.device.type, enabled=False):
        x, v = distance.to(wide), messages.to(wide)
        made: Tensor = _Convolve.apply(x, v, layout, together)  # type: ignore[no-untyped-call]
    return made.to(messages.dtype)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, order: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        ctx.save_for_backward(order)
        return _to_bins(values, order, layout)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        return _to_rows(gradients[0], order, ctx.layout), None, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bins: Tensor, order: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        ctx.save_for_backward(order)
        return _to_rows(bins, order, layout)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (order,) = ctx.saved_tensors
        bins = _to_bins(gradients[0], order, ctx.layout)
        return bins.mul_(_empty(ctx.layout, bins)), None, None


def _to_bins(values: Tensor, order: Tensor, layout: Layout) -> Tensor:
    stacks, _, width = values.shape
    source = order.new_zeros(stacks, layout.bins * layout.size)
    source[:, layout.slot] = order
    found = [part.index_select(0, rows) for part, rows in zip(values, source, strict=True)]
    return torch.cat(found).view(stacks * layout.bins, layout.size, width)


def _to_rows(bins: Tensor, order: Tensor, layout: Layout) -> Tensor:
    parts = bins.reshape(len(order), layout.bins * layout.size, bins.shape[-1])
    place = torch.empty_like(order).scatter_(1, order, layout.slot.expand_as(order))
    return torch.stack([part.index_select(0, rows) for part, rows in zip(parts, place, strict=True)])


def _empty(layout: Layout, bins: Tensor) -> Tensor:
    mask = layout.mask.to(bins.dtype).unsqueeze(-1)
    return mask.repeat(len(bins) // layout.bins, 1, 1)


def _pieces(layout: Layout, many: int, together: bool) -> Iterator[tuple[slice, int]]:
    """Bins that are worked on at a time, and how many places of them."""
    if together:
        yield slice(0, many), layout.size
        return
    for place in range(many):
        yield slice(place, place + 1), layout.filled[place % layout.bins]


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, distance: Tensor, messages: Tensor, layout: Layout, together: bool) -> Tensor:
        made, kept = torch.zeros_like(messages), list[Tensor]()
        mask = layout.mask.repeat(len(distance) // layout.bins, 1) if together else None
        for own, n in _pieces(layout, len(distance), together):
            x, v = distance[own, :n], messages[own, :n]
            near, slope = _kernel(x, mask)
            norm = (near.sum(dim=-1, keepdim=True) + LEAST).rsqrt_()
            norm = norm if mask is None else norm * mask.unsqueeze(-1)
            torch.mul(torch.bmm(near, v * norm), norm, out=made[own, :n])
            kept += [near, slope, norm]
        ctx.layout, ctx.together = layout, together
        ctx.save_for_backward(distance, messages, made, *kept)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        distance, messages, made, *kept = ctx.saved_tensors
        of_x, of_v = torch.zeros_like(distance), torch.zeros_like(messages)
        for place, (own, n) in enumerate(_pieces(ctx.layout, len(distance), ctx.together)):
            near, slope, norm = kept[3 * place : 3 * place + 3]
            x, v = distance[own, :n], messages[own, :n] * norm
            dy, y = gradients[0][own, :n], made[own, :n]
            through = dy * norm
            back = torch.bmm(near, through)
            degree = (dy * y).sum(dim=-1, keepdim=True).add_((back * v).sum(dim=-1, keepdim=True))
            degree.mul_(norm).mul_(norm).mul_(-0.5)
            torch.mul(back, norm, out=of_v[own, :n])
            pull = torch.bmm(through, v.transpose(1, 2)).add_(degree)
            pull = (pull + pull.transpose(1, 2)).mul_(slope)
            of_x[own, :n] = torch.baddbmm(x * pull.sum(dim=-1, keepdim=True), pull, x, alpha=-1)
        return of_x, of_v, None, None


def _kernel(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """A, and dA/d(distance) / distance, which is zero where two elements are at one place."""
    square = (x * x).sum(dim=-1)
    apart = square.unsqueeze(2) + square.unsqueeze(1)
    apart.baddbmm_(x, x.transpose(1, 2), alpha=-2).clamp_(min=LEAST).sqrt_()
    near = (apart * -STEEP).exp_()
    if mask is not None:
        near.mul_(mask.unsqueeze(1)).mul_(mask.unsqueeze(2))
    slope = torch.div(near, apart).mul_(-STEEP)
    slope.masked_fill_(apart <= LEAST**0.5, 0)
    return near, slope
