"""The kernels around the product A v of a graph layer: inner features, messages and gate, forward and backward.

`z` is the projected input of a layer. Its columns are: inner distance features, messages, gate, shortcut.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16
STEP, STEPS = 8, 8
"""Rows that a program processes at a time, and how many times, in kernels that sum over rows."""


@triton.jit
def _send(z, index, norm, sent, width, at, h: tl.constexpr, block: tl.constexpr):
    p, k = tl.program_id(0) * block + tl.arange(0, block), tl.arange(0, h)
    row = tl.load(index + p).to(tl.int64)
    value = tl.load(z + row[:, None] * width + at + k[None, :]).to(tl.float32) * tl.load(norm + p)[:, None]
    tl.store(sent + p.to(tl.int64)[:, None] * h + k[None, :], value.to(sent.dtype.element_ty))


@triton.jit
def _gate(arrived, z, index, norm, bias, result, rows, width, at, h: tl.constexpr, block: tl.constexpr):
    """Compute elu(g y + (1 - g) s) and write it to the row of each element before sorting."""
    p, k = tl.program_id(0) * block + tl.arange(0, block), tl.arange(0, h)
    row, stack = tl.load(index + p).to(tl.int64), (tl.program_id(0) * block) // rows
    y = tl.load(arrived + p.to(tl.int64)[:, None] * h + k[None, :]).to(tl.float32) * tl.load(norm + p)[:, None]
    gate = tl.load(z + row[:, None] * width + at + k[None, :]).to(tl.float32)
    gate = tl.sigmoid(gate + tl.load(bias + stack * h + k)[None, :])
    around = tl.load(z + row[:, None] * width + at + h + k[None, :]).to(tl.float32)
    mixed = around + gate * (y - around)
    out = tl.where(mixed > 0, mixed, tl.exp(tl.minimum(mixed, 0.0)) - 1)
    tl.store(result + row[:, None] * h + k[None, :], out.to(result.dtype.element_ty))


@triton.jit
def _gate_back(
    dresult, result, arrived, z, index, norm, bias, dz, through, along, dbias, rows, width, at,
    h: tl.constexpr, step: tl.constexpr, steps: tl.constexpr,
):  # fmt: skip
    """Write the gradients of gate and shortcut to `dz`, that of A v (with its norm) to `through`, dy . y to `along`."""
    k, stack = tl.arange(0, h), (tl.program_id(0) * step * steps) // rows
    shift, total = tl.load(bias + stack * h + k), tl.zeros([step, h], tl.float32)
    for number in range(steps):
        p = (tl.program_id(0) * steps + number) * step + tl.arange(0, step)
        row, scale = tl.load(index + p).to(tl.int64), tl.load(norm + p)[:, None]
        bin_at, row_at = p.to(tl.int64)[:, None] * h + k[None, :], row[:, None] * width + at + k[None, :]
        y = tl.load(arrived + bin_at).to(tl.float32) * scale
        gate = tl.sigmoid(tl.load(z + row_at).to(tl.float32) + shift[None, :])
        around = tl.load(z + row_at + h).to(tl.float32)
        out = tl.load(result + row[:, None] * h + k[None, :]).to(tl.float32)
        slope = tl.load(dresult + row[:, None] * h + k[None, :]).to(tl.float32) * tl.where(out > 0, 1.0, out + 1.0)
        dy, dgate = slope * gate, slope * (y - around) * gate * (1 - gate)
        tl.store(dz + row_at, dgate.to(dz.dtype.element_ty))
        tl.store(dz + row_at + h, (slope - dy).to(dz.dtype.element_ty))
        tl.store(through + bin_at, (dy * scale).to(through.dtype.element_ty))
        tl.store(along + p, tl.sum(dy * y, 1))
        total += dgate
    tl.store(dbias + tl.program_id(0) * h + k, tl.sum(total, 0))


@triton.jit
def _send_back(back, sent, along, index, norm, dz, degree, width, at, h: tl.constexpr, block: tl.constexpr):
    """Write the gradient of messages to `dz`, and compute that of degrees."""
    p, k = tl.program_id(0) * block + tl.arange(0, block), tl.arange(0, h)
    row, scale = tl.load(index + p).to(tl.int64), tl.load(norm + p)
    bin_at = p.to(tl.int64)[:, None] * h + k[None, :]
    came, went = tl.load(back + bin_at).to(tl.float32), tl.load(sent + bin_at).to(tl.float32)
    tl.store(degree + p, -0.5 * scale * scale * (tl.load(along + p) + tl.sum(came * went, 1)))
    tl.store(dz + row[:, None] * width + at + k[None, :], (came * scale[:, None]).to(dz.dtype.element_ty))


@triton.jit
def _inner(z, bias, inner, rows, width, d: tl.constexpr, block: tl.constexpr):
    """Compute the ELU of the inner distance features with their bias."""
    row, k = tl.program_id(0) * block + tl.arange(0, block), tl.arange(0, d)
    stack = (tl.program_id(0) * block) // rows
    value = tl.load(z + row.to(tl.int64)[:, None] * width + k[None, :]).to(tl.float32)
    value += tl.load(bias + stack * d + k)[None, :]
    value = tl.where(value > 0, value, tl.exp(tl.minimum(value, 0.0)) - 1)
    tl.store(inner + row.to(tl.int64)[:, None] * d + k[None, :], value.to(inner.dtype.element_ty))


@triton.jit
def _inner_back(dinner, inner, dz, dbias, width, d: tl.constexpr, step: tl.constexpr, steps: tl.constexpr):
    k, total = tl.arange(0, d), tl.zeros([step, d], tl.float32)
    for number in range(steps):
        row = ((tl.program_id(0) * steps + number) * step + tl.arange(0, step)).to(tl.int64)
        value = tl.load(inner + row[:, None] * d + k[None, :]).to(tl.float32)
        slope = tl.load(dinner + row[:, None] * d + k[None, :]).to(tl.float32) * tl.where(value > 0, 1.0, value + 1.0)
        tl.store(dz + row[:, None] * width + k[None, :], slope.to(dz.dtype.element_ty))
        total += slope
    tl.store(dbias + tl.program_id(0) * d + k, tl.sum(total, 0))


def inner_features(z: Tensor, bias: Tensor, width: int) -> Tensor:
    """Return the inner distance features (stacks, rows, width)."""
    stacks, rows, total_width = z.shape
    result = z.new_empty(stacks, rows, width)
    _inner[(stacks * rows // ROWS,)](z, bias, result, rows, total_width, d=width, block=ROWS, num_warps=4)
    return result


def inner_features_backward(dinner: Tensor, result: Tensor, dz: Tensor) -> Tensor:
    """Write the gradient of the inner features to `dz`, and return that of the bias (stacks, width)."""
    stacks, rows, width = result.shape
    programs = stacks * rows // (STEP * STEPS)
    sums = result.new_empty(programs, width, dtype=torch.float32)
    _inner_back[(programs,)](dinner, result, dz, sums, dz.shape[-1], d=width, step=STEP, steps=STEPS, num_warps=4)
    return sums.view(stacks, -1, width).sum(dim=1)


def send_messages(z: Tensor, index: Tensor, norm: Tensor, at: int, width: int, size: int) -> Tensor:
    """Return the messages multiplied by the norm, in bins (stacks * bins, size, width)."""
    sent = z.new_empty(len(index) // size, size, width)
    _send[(len(index) // ROWS,)](z, index, norm, sent, z.shape[-1], at, h=width, block=ROWS, num_warps=4)
    return sent


def gate_messages(arrived: Tensor, z: Tensor, index: Tensor, norm: Tensor, bias: Tensor, at: int) -> Tensor:
    """Return the output of a layer (stacks, rows, width)."""
    stacks, rows, total_width = z.shape
    width = arrived.shape[-1]
    result = z.new_empty(stacks, rows, width)
    grid = (len(index) // ROWS,)
    _gate[grid](arrived, z, index, norm, bias, result, rows, total_width, at, h=width, block=ROWS, num_warps=4)
    return result


def gate_messages_backward(
    dresult: Tensor,
    result: Tensor,
    arrived: Tensor,
    z: Tensor,
    index: Tensor,
    norm: Tensor,
    bias: Tensor,
    dz: Tensor,
    at: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of A v times the norm in bins, dy . y per slot, and the bias gradient (stacks, width)."""
    stacks, rows, total_width = z.shape
    width, programs = arrived.shape[-1], len(index) // (STEP * STEPS)
    through, along = torch.empty_like(arrived), torch.empty_like(norm)
    sums = norm.new_empty(programs, width)
    _gate_back[(programs,)](
        dresult, result, arrived, z, index, norm, bias, dz, through, along, sums, rows, total_width, at,
        h=width, step=STEP, steps=STEPS, num_warps=4,
    )  # fmt: skip
    return through, along, sums.view(stacks, -1, width).sum(dim=1)


def send_messages_backward(
    back: Tensor, sent: Tensor, along: Tensor, index: Tensor, norm: Tensor, dz: Tensor, at: int
) -> Tensor:
    """Return the gradient of degrees per slot; that of messages is written to `dz`."""
    degree, width = torch.empty_like(norm), sent.shape[-1]
    grid = (len(index) // ROWS,)
    _send_back[grid](back, sent, along, index, norm, dz, degree, dz.shape[-1], at, h=width, block=ROWS, num_warps=4)
    return degree
