"""Triton kernels: 5x5 maximum pooling with bias and ELU after a torch convolution, and its gradient."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pool(z, bias, y, winner, total, height, width, channels, rows, columns, WIDE: tl.constexpr, CELLS: tl.constexpr):
    """Pool z (events, height, width, channels), which has no bias yet: WIDE channels of CELLS cells at a time."""
    m = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    c = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    valid = (m < total)[:, None] & (c < channels)[None, :]
    event = (m // (rows * columns)).to(tl.int64)
    corner = (event * height + 5 * (m // columns % rows)) * width + 5 * (m % columns)
    best = tl.full([CELLS, WIDE], float("-inf"), tl.float32)
    code = tl.zeros([CELLS, WIDE], tl.int32)
    for place in tl.static_range(25):
        at = (corner + place // 5 * width + place % 5)[:, None] * channels + c[None, :]
        value = tl.load(z + at, mask=valid, other=0.0).to(tl.float32)
        wins = value > best
        best, code = tl.where(wins, value, best), tl.where(wins, place, code)
    best = best + tl.load(bias + c, mask=c < channels, other=0.0)[None, :]
    best = tl.where(best > 0, best, tl.exp(best) - 1)
    at = m.to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(y + at, best.to(y.dtype.element_ty), mask=valid)
    tl.store(winner + at, code.to(tl.uint8), mask=valid)


@triton.jit
def unpool(
    gradient, y, winner, dz, sums,
    total, height, width, channels, rows, columns,
    WIDE: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Write the gradient before ELU to the winner, 0 to the other positions; add it to `sums` (channels,), float32."""
    m = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    c = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    valid = (m < total)[:, None] & (c < channels)[None, :]
    event = (m // (rows * columns)).to(tl.int64)
    corner = (event * height + 5 * (m // columns % rows)) * width + 5 * (m % columns)
    at = m.to(tl.int64)[:, None] * channels + c[None, :]
    value = tl.load(y + at, mask=valid, other=0.0).to(tl.float32)
    inner = tl.load(gradient + at, mask=valid, other=0.0).to(tl.float32) * tl.where(value > 0, 1.0, value + 1.0)
    code = tl.load(winner + at, mask=valid, other=25).to(tl.int32)
    for place in tl.static_range(25):
        to = (corner + place // 5 * width + place % 5)[:, None] * channels + c[None, :]
        tl.store(dz + to, tl.where(code == place, inner, 0.0).to(dz.dtype.element_ty), mask=valid)
    tl.atomic_add(sums + c, tl.sum(inner, 0), mask=c < channels)
