"""A dense layer with ELU as one operation: bias and ELU in place, and a backward pass that also sums for the bias."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clew.recipes.particleflow.kernels.products import weight_gradient

BLOCK = 2048
ROWS, COLUMNS = 64, 64
"""Rows and columns that a program processes at a time."""
TURNS = 10
"""Blocks of rows per program."""


@triton.jit
def _activate(z, bias, numbers, width, BLOCK: tl.constexpr):
    """Replace z (heads, rows, width) by elu(z + bias). The second axis of programs is the head."""
    head = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid, z = place < numbers, z + head.to(tl.int64) * numbers
    value = tl.load(z + place, mask=valid, other=0.0).to(tl.float32)
    value += tl.load(bias + head * width + place % width)
    value = tl.where(value > 0, value, tl.exp(value) - 1)
    tl.store(z + place, value.to(z.dtype.element_ty), mask=valid)


@triton.jit
def _activation_backward(dy, y, dz, sums, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNS: tl.constexpr):
    """Compute the gradient before ELU from the result of ELU, and its `sums` (heads, programs along rows, width)."""
    head, part = tl.program_id(2), tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for turn in range(TURNS):
        row = (part * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        valid = (row < rows)[:, None] & (column < width)[None, :]
        at = (head * rows + row).to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(y + at, mask=valid, other=0.0).to(tl.float32)
        gradient = tl.load(dy + at, mask=valid, other=0.0).to(tl.float32) * tl.where(value > 0, 1.0, value + 1.0)
        tl.store(dz + at, gradient.to(dz.dtype.element_ty), mask=valid)
        total += tl.sum(gradient, 0)
    tl.store(sums + (head * tl.num_programs(0) + part) * width + column, total, mask=column < width)


@torch.library.custom_op("clew::flow_dense", mutates_args=())
def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return elu(x weight + bias) in the precision of x. Shapes: (heads, rows, k), (heads, k, n), (heads, n)."""
    result = torch.bmm(x, weight.to(x.dtype))
    heads, rows, width = result.shape
    grid = (triton.cdiv(rows * width, BLOCK), heads)
    _activate[grid](result, bias.contiguous(), rows * width, width, BLOCK=BLOCK, num_warps=4)
    return result


@dense.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], weight.shape[2])


@torch.library.custom_op("clew::flow_dense_back", mutates_args=())
def dense_backward(dy: Tensor, x: Tensor, weight: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias."""
    heads, rows, width = y.shape
    parts = triton.cdiv(rows, ROWS * TURNS)
    dz, sums = torch.empty_like(y), torch.empty(heads, parts, width, dtype=torch.float32, device=y.device)
    grid, sizes = (parts, triton.cdiv(width, COLUMNS), heads), {"ROWS": ROWS, "COLUMNS": COLUMNS, "TURNS": TURNS}
    _activation_backward[grid](dy.contiguous(), y, dz, sums, rows, width, **sizes, num_warps=4)
    dx = torch.bmm(dz, weight.to(x.dtype).transpose(1, 2), out=torch.empty_like(x))  # with the strides of x
    return dx, weight_gradient(x, dz).to(weight.dtype).contiguous(), sums.sum(dim=1)


@dense_backward.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), weight.new_empty(weight.shape), weight.new_empty(y.shape[0], y.shape[2])


def _save_for_backward(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], output)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, y = ctx.saved_tensors
    gradients: tuple[Tensor, Tensor, Tensor] = dense_backward(dy, x, weight, y)
    return gradients


dense.register_autograd(_backward, setup_context=_save_for_backward)
