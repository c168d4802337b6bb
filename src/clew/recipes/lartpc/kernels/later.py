"""On a device: the later blocks as matrix products over gathered cells.

Positions are given with a frame of two around the image, so that what winners send beyond its edge can be told as well.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gathered(x, event, y, x_place, there, height, width, stride, c, CHANNELS: tl.constexpr):
    """Rows (positions, channels) of an image (events, height, width, stride); zero beyond it."""
    seen = there & (y >= 0) & (y < height) & (x_place >= 0) & (x_place < width)
    row = (event * height + y) * width + x_place
    return tl.load(x + row[:, None] * stride + c[None, :], mask=seen[:, None] & (c < CHANNELS)[None, :], other=0.0)


@triton.jit
def better(z, place, best, code):
    """The larger of two, the earlier of equals."""
    wins = (z > best) | ((z == best) & (place < code))
    return tl.where(wins, z, best), tl.where(wins, place, code)


@triton.jit
def cells_forward(
    x, listed, count, taps, bias, y, winner,
    height, width, stride, outputs,
    CHANNELS: tl.constexpr, PADDED: tl.constexpr, OUTPUTS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """`taps` is (25, PADDED, outputs). A column of 5 convolutions at a time shares what it loads of 9 rows."""
    c, o = tl.arange(0, PADDED), tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    number, rows, columns = tl.load(count), height // 5, width // 5
    offset = tl.load(bias + o)
    for tile in range(tl.program_id(0), tl.cdiv(number, CELLS), tl.num_programs(0)):
        m = tile * CELLS + tl.arange(0, CELLS)
        there = m < number
        cell = tl.load(listed + m, mask=there, other=0)
        left, above = 5 * (cell % columns) - 2, 5 * (cell // columns % rows) - 2
        event = (cell // (rows * columns)).to(tl.int64)
        best = tl.full([CELLS, OUTPUTS], float("-inf"), tl.float32)
        code = tl.zeros([CELLS, OUTPUTS], tl.int32)
        for right in range(5):
            z0 = tl.zeros([CELLS, OUTPUTS], tl.float32)
            z1 = tl.zeros([CELLS, OUTPUTS], tl.float32)
            z2 = tl.zeros([CELLS, OUTPUTS], tl.float32)
            z3 = tl.zeros([CELLS, OUTPUTS], tl.float32)
            z4 = tl.zeros([CELLS, OUTPUTS], tl.float32)
            for column in range(5):
                tap = taps + column * PADDED * outputs + c[:, None] * outputs + o[None, :]
                line = 5 * PADDED * outputs
                for row in tl.static_range(9):
                    seen = gathered(
                        x, event, above + row, left + right + column, there, height, width, stride, c, CHANNELS
                    )
                    if row < 5:
                        z0 = tl.dot(seen, tl.load(tap + row * line), z0)
                    if row >= 1 and row < 6:
                        z1 = tl.dot(seen, tl.load(tap + (row - 1) * line), z1)
                    if row >= 2 and row < 7:
                        z2 = tl.dot(seen, tl.load(tap + (row - 2) * line), z2)
                    if row >= 3 and row < 8:
                        z3 = tl.dot(seen, tl.load(tap + (row - 3) * line), z3)
                    if row >= 4:
                        z4 = tl.dot(seen, tl.load(tap + (row - 4) * line), z4)
            best, code = better(z0, right, best, code)
            best, code = better(z1, right + 5, best, code)
            best, code = better(z2, right + 10, best, code)
            best, code = better(z3, right + 15, best, code)
            best, code = better(z4, right + 20, best, code)
        z = best + offset[None, :]
        z = tl.where(z > 0, z, tl.exp(z) - 1)
        at = cell.to(tl.int64)[:, None] * outputs + o[None, :]
        tl.store(y + at, z.to(y.dtype.element_ty), mask=there[:, None])
        tl.store(winner + at, code.to(tl.uint8), mask=there[:, None])


@triton.jit
def cells_learn(
    x, listed, count, inner, winner, dtaps,
    height, width, stride, outputs,
    CHANNELS: tl.constexpr, PADDED: tl.constexpr, OUTPUTS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """Add to the gradient of taps (25, PADDED, outputs), float32; the second axis of programs is the tap."""
    tap = tl.program_id(1)
    c, o = tl.arange(0, PADDED), tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
    number, rows, columns = tl.load(count), height // 5, width // 5
    total = tl.zeros([PADDED, OUTPUTS], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(number, CELLS), tl.num_programs(0)):
        m = tile * CELLS + tl.arange(0, CELLS)
        there = m < number
        cell = tl.load(listed + m, mask=there, other=0)
        left, above = 5 * (cell % columns) - 2 + tap % 5, 5 * (cell // columns % rows) - 2 + tap // 5
        event = (cell // (rows * columns)).to(tl.int64)
        at = cell.to(tl.int64)[:, None] * outputs + o[None, :]
        gradient = tl.load(inner + at, mask=there[:, None], other=0.0)
        won = tl.load(winner + at, mask=there[:, None], other=255)
        for place in range(25):
            seen = gathered(x, event, above + place // 5, left + place % 5, there, height, width, stride, c, CHANNELS)
            total = tl.dot(tl.trans(seen), tl.where(won == place, gradient, 0.0), total)
    tl.atomic_add(dtaps + (tap * PADDED + c[:, None]) * outputs + o[None, :], total)


@triton.jit
def cells_return(
    inner, winner, listed, count, taps, dx, total,
    height, width, outputs, keep,
    CHANNELS: tl.constexpr, PADDED: tl.constexpr, OUTPUTS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """What winners carry back to listed positions of the framed input; `taps` is (25, outputs, PADDED).

    Written to dx if `keep`; the sum over positions is added to `total` (PADDED,), float32, in any case.
    """
    c, o = tl.arange(0, PADDED), tl.arange(0, OUTPUTS)
    number, rows, columns = tl.load(count), height // 5, width // 5
    sums = tl.zeros([PADDED], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(number, PLACES), tl.num_programs(0)):
        m = tile * PLACES + tl.arange(0, PLACES)
        there = m < number
        framed = tl.load(listed + m, mask=there, other=0)
        across, down = framed % (width + 4) - 2, framed // (width + 4) % (height + 4) - 2
        event = (framed // ((width + 4) * (height + 4))).to(tl.int64)
        found = tl.zeros([PLACES, PADDED], tl.float32)
        for tap in range(25):
            y, x = down + 2 - tap // 5, across + 2 - tap % 5
            seen = there & (y >= 0) & (y < 5 * rows) & (x >= 0) & (x < 5 * columns)
            y, x = tl.where(seen, y, 0), tl.where(seen, x, 0)
            place = (y % 5 * 5 + x % 5)[:, None]
            row = ((event * rows + y // 5) * columns + x // 5) * outputs
            for first in range(0, outputs, OUTPUTS):
                at = row[:, None] + first + o[None, :]
                gradient = tl.load(inner + at, mask=seen[:, None], other=0.0)
                won = tl.load(winner + at, mask=seen[:, None], other=255)
                weight = tl.load(taps + (tap * outputs + first + o[:, None]) * PADDED + c[None, :])
                found = tl.dot(tl.where(won == place, gradient, 0.0), weight, found)
        sums += tl.sum(found, 0)
        if keep:
            at = ((event * height + down) * width + across)[:, None] * CHANNELS + c[None, :]
            tl.store(dx + at, found.to(dx.dtype.element_ty), mask=there[:, None] & (c < CHANNELS)[None, :])
    tl.atomic_add(total + c, sums)
