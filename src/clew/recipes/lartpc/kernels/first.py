"""On a device: the first block. A window of 9x9 pixels times a matrix gives all 25 convolutions of a cell."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def window(image, cell, there, down, right, inside, height, width):
    """Pixels (cells, len(down)) at places counted from two before the cell; zero beyond the image."""
    columns = width // 5
    rows = height // 5
    y = (5 * (cell // columns % rows) - 2)[:, None] + down[None, :]
    x = (5 * (cell % columns) - 2)[:, None] + right[None, :]
    seen = there[:, None] & inside[None, :] & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    event = (cell // (rows * columns)).to(tl.int64)[:, None]
    return tl.load(image + (event * height + y) * width + x, mask=seen, other=0.0)


@triton.jit
def pixels_forward(
    image, listed, count, matrix, bias, y, winner,
    height, width, y_stride, outputs,
    CELLS: tl.constexpr,
):  # fmt: skip
    """`matrix` is (25, 128, 16): from a window, row by row, to each of the 25 convolutions of 16 outputs."""
    k, o = tl.arange(0, 128), tl.arange(0, 16)
    number = tl.load(count)
    offset = tl.load(bias + o, mask=o < outputs, other=0.0)
    for tile in range(tl.program_id(0), tl.cdiv(number, CELLS), tl.num_programs(0)):
        m = tile * CELLS + tl.arange(0, CELLS)
        cell = tl.load(listed + m, mask=m < number, other=0)
        seen = window(image, cell, m < number, k // 9, k % 9, k < 81, height, width)
        best = tl.full([CELLS, 16], float("-inf"), tl.float32)
        code = tl.zeros([CELLS, 16], tl.int32)
        for place in range(25):
            z = tl.dot(seen, tl.load(matrix + (place * 128 + k[:, None]) * 16 + o[None, :]))
            code = tl.where(z > best, place, code)
            best = tl.maximum(z, best)
        z = best + offset[None, :]
        z = tl.where(z > 0, z, tl.exp(z) - 1)
        kept = (m < number)[:, None] & (o < outputs)[None, :]
        row = cell.to(tl.int64)[:, None]
        tl.store(y + row * y_stride + o[None, :], z.to(y.dtype.element_ty), mask=kept)
        tl.store(winner + row * outputs + o[None, :], code.to(tl.uint8), mask=kept)


@triton.jit
def pixels_learn(
    image, listed, count, inner, winner, dweight,
    height, width, outputs,
    CELLS: tl.constexpr,
):  # fmt: skip
    """Add to the gradient of weights (32 taps, 16 outputs), float32, what winners saw."""
    tap, o = tl.arange(0, 32), tl.arange(0, 16)
    number = tl.load(count)
    total = tl.zeros([32, 16], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(number, CELLS), tl.num_programs(0)):
        m = tile * CELLS + tl.arange(0, CELLS)
        cell = tl.load(listed + m, mask=m < number, other=0)
        kept = (m < number)[:, None] & (o < outputs)[None, :]
        at = cell.to(tl.int64)[:, None] * outputs + o[None, :]
        gradient, won = tl.load(inner + at, mask=kept, other=0.0), tl.load(winner + at, mask=kept, other=255)
        for place in range(25):
            down, right = place // 5 + tap // 5, place % 5 + tap % 5
            seen = window(image, cell, m < number, down, right, tap < 25, height, width)
            total = tl.dot(tl.trans(seen), tl.where(won == place, gradient, 0.0), total)
    tl.atomic_add(dweight + tap[:, None] * 16 + o[None, :], total)
