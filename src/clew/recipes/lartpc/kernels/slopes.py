"""On a device: back through ELU in one pass, with the sums over cells that a block needs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def back_through(
    gradient, y, active, inner, idle, passed,
    total, channels,
    PADDED: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """The gradient before ELU in active cells, 0 elsewhere.

    Added up in float32 (channels,): what arrived where nothing is active, to `idle`, and what was written, to `passed`.
    """
    c = tl.arange(0, PADDED)
    arrived_idle, went = tl.zeros([PADDED], tl.float32), tl.zeros([PADDED], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(total, CELLS), tl.num_programs(0)):
        m = tile * CELLS + tl.arange(0, CELLS)
        kept = (m < total)[:, None] & (c < channels)[None, :]
        works = (tl.load(active + m, mask=m < total, other=0) != 0)[:, None]
        cell = m.to(tl.int64)[:, None]
        arrived = tl.load(gradient + cell * channels + c[None, :], mask=kept, other=0.0).to(tl.float32)
        value = tl.load(y + cell * channels + c[None, :], mask=kept, other=0.0).to(tl.float32)
        found = tl.where(works, arrived * tl.where(value > 0, 1.0, value + 1.0), 0.0)
        tl.store(inner + cell * channels + c[None, :], found.to(inner.dtype.element_ty), mask=kept)
        arrived_idle += tl.sum(tl.where(works, 0.0, arrived), 0)
        went += tl.sum(found, 0)
    tl.atomic_add(idle + c, arrived_idle, mask=c < channels)
    tl.atomic_add(passed + c, went, mask=c < channels)


@triton.jit
def at_edges(
    inner, winner, border, sums,
    total, length, rows, columns, height, width, channels,
    PADDED: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Add to `sums` (25, PADDED), float32, what winners near the edge carry, by which taps of theirs are beyond it.

    5 * y + x: y is 2 less the rows of the window above the image, or 2 and the rows below it; x alike. 12 is none.
    `border`: `length` cells of an event.
    """
    c = tl.arange(0, PADDED)
    m = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    cell = tl.load(border + m % length, mask=m < total, other=0)
    kept = (m < total)[:, None] & (c < channels)[None, :]
    at = ((m // length).to(tl.int64) * rows * columns + cell)[:, None] * channels + c[None, :]
    gradient = tl.load(inner + at, mask=kept, other=0.0).to(tl.float32)
    won = tl.load(winner + at, mask=kept, other=12).to(tl.int32)
    y, x = (5 * (cell // columns))[:, None] + won // 5, (5 * (cell % columns))[:, None] + won % 5
    down = 2 - tl.maximum(2 - y, 0) + tl.maximum(y + 3 - height, 0)
    right = 2 - tl.maximum(2 - x, 0) + tl.maximum(x + 3 - width, 0)
    for kind in range(25):
        own = 5 * down + right == kind
        if tl.max(tl.max(own.to(tl.int32), 1), 0) > 0:
            tl.atomic_add(sums + kind * PADDED + c, tl.sum(tl.where(own, gradient, 0.0), 0))
