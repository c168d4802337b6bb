"""Triton kernels: the gradient of ELU in one pass, with the sums over cells that a block needs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def elu_backward(
    gradient, y, active, inner, idle, passed,
    total, channels,
    PADDED: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient before ELU in active cells, 0 elsewhere.

    The incoming gradient of inactive cells is added to `idle`, the computed gradient to `passed`: float32 (channels,).
    """
    c = tl.arange(0, PADDED)
    idle_sum, result_sum = tl.zeros([PADDED], tl.float32), tl.zeros([PADDED], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(total, CELLS), tl.num_programs(0)):
        m = tile * CELLS + tl.arange(0, CELLS)
        valid = (m < total)[:, None] & (c < channels)[None, :]
        is_active = (tl.load(active + m, mask=m < total, other=0) != 0)[:, None]
        cell = m.to(tl.int64)[:, None]
        arrived = tl.load(gradient + cell * channels + c[None, :], mask=valid, other=0.0).to(tl.float32)
        value = tl.load(y + cell * channels + c[None, :], mask=valid, other=0.0).to(tl.float32)
        result = tl.where(is_active, arrived * tl.where(value > 0, 1.0, value + 1.0), 0.0)
        tl.store(inner + cell * channels + c[None, :], result.to(inner.dtype.element_ty), mask=valid)
        idle_sum += tl.sum(tl.where(is_active, 0.0, arrived), 0)
        result_sum += tl.sum(result, 0)
    tl.atomic_add(idle + c, idle_sum, mask=c < channels)
    tl.atomic_add(passed + c, result_sum, mask=c < channels)


@triton.jit
def sum_border_gradients(
    inner, winner, border, sums,
    total, length, rows, columns, height, width, channels,
    PADDED: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Add the gradients of winners near the border to `sums` (25, PADDED), float32, by kind.

    The kind says which taps of a winner lie beyond the image. It is 5 * y + x. y is 2 minus the number of rows above
    the image, or 2 plus the number of rows below it; x is the same for columns. Kind 12 has all taps in the image.
    `border` are the `length` border cells of an event.
    """
    c = tl.arange(0, PADDED)
    m = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    cell = tl.load(border + m % length, mask=m < total, other=0)
    valid = (m < total)[:, None] & (c < channels)[None, :]
    at = ((m // length).to(tl.int64) * rows * columns + cell)[:, None] * channels + c[None, :]
    gradient = tl.load(inner + at, mask=valid, other=0.0).to(tl.float32)
    won = tl.load(winner + at, mask=valid, other=12).to(tl.int32)
    y, x = (5 * (cell // columns))[:, None] + won // 5, (5 * (cell % columns))[:, None] + won % 5
    down = 2 - tl.maximum(2 - y, 0) + tl.maximum(y + 3 - height, 0)
    right = 2 - tl.maximum(2 - x, 0) + tl.maximum(x + 3 - width, 0)
    for kind in range(25):
        of_kind = 5 * down + right == kind
        if tl.max(tl.max(of_kind.to(tl.int32), 1), 0) > 0:
            tl.atomic_add(sums + kind * PADDED + c, tl.sum(tl.where(of_kind, gradient, 0.0), 0))
