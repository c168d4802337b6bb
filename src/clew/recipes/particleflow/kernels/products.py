"""Matrix products whose weight gradients sum over 10^5 rows: in parts, so that a GPU has enough to do at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PARTS = 32
"""At most."""
TILE, TILES = 128, 264
"""Rows and columns that a multiprocessor does of a product, and how many such should be there at least."""


def _parts(k: int, n: int) -> int:
    """Parts of a sum, so that its products fill a device."""
    tiles, parts = -(-k // TILE) * -(-n // TILE), 4
    while parts < PARTS and parts * tiles < TILES:
        parts *= 2
    return parts


def summed(x: Tensor, gradient: Tensor, parts: int | None = None) -> Tensor:
    """x^T gradient over rows, (b, rows, k) and (b, rows, n) to (b, k, n), added in single precision."""
    rows, parts = x.shape[1], parts or _parts(x.shape[2], gradient.shape[2])
    while rows % parts:
        parts //= 2
    wide = torch.promote_types(x.dtype, torch.float32)
    found = []
    for own, of in zip(x, gradient, strict=True):  # one by one: together they might have to be copied
        pieces = [each.unflatten(0, (parts, rows // parts)) for each in (own, of)]
        found.append(torch.bmm(pieces[0].transpose(1, 2), pieces[1]).sum(dim=0, dtype=wide))
    return torch.stack(found)


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
        own = torch.bmm(gradients[0], weight.transpose(1, 2)) if ctx.needs_input_grad[0] else None
        return own, summed(x, gradients[0]).to(ctx.kind)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """(b, rows, k) times (b, k, n), in the precision of x; weights and their gradients keep theirs."""
    made: Tensor = _Product.apply(x, weight)
    return made
