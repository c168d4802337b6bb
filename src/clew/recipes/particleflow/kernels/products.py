"""Matrix products whose weight gradients sum over 10^5 rows: the sum is split into parts, which fill a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MAX_PARTS = 32
"""Maximum number of parts of a sum."""
TILE, TILES = 128, 264
"""Rows and columns of a product per multiprocessor, and the minimum number of such tiles."""


def _parts(k: int, n: int) -> int:
    """Return the number of parts of a sum whose products fill a device."""
    tiles, parts = -(-k // TILE) * -(-n // TILE), 4
    while parts < MAX_PARTS and parts * tiles < TILES:
        parts *= 2
    return parts


def weight_gradient(x: Tensor, gradient: Tensor, parts: int | None = None) -> Tensor:
    """Return x^T gradient, summed over rows in single precision: (b, rows, k) and (b, rows, n) to (b, k, n)."""
    rows, parts = x.shape[1], parts or _parts(x.shape[2], gradient.shape[2])
    while rows % parts:
        parts //= 2
    wide = torch.promote_types(x.dtype, torch.float32)
    sums = []
    for inputs, outputs in zip(x, gradient, strict=True):  # one by one: a batched product might copy its inputs
        pieces = [each.unflatten(0, (parts, rows // parts)) for each in (inputs, outputs)]
        sums.append(torch.bmm(pieces[0].transpose(1, 2), pieces[1]).sum(dim=0, dtype=wide))
    return torch.stack(sums)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        near = weight.to(x.dtype)
        ctx.save_for_backward(x, near)
        ctx.kind = weight.dtype
        return torch.bmm(x, near)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        dx = torch.bmm(gradients[0], weight.transpose(1, 2)) if ctx.needs_input_grad[0] else None
        return dx, weight_gradient(x, gradients[0]).to(ctx.kind)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return (b, rows, k) times (b, k, n) in the precision of x; weights and their gradients keep their precision."""
    result: Tensor = _Product.apply(x, weight)
    return result
