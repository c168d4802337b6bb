"""Triton kernels: pixels to images, background, and lists of active cells. The lengths of lists stay on the device."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scatter(index, charge, offsets, image, active, height, width, BLOCK: tl.constexpr):
    """Write pixels to their images, and mark the cells with these pixels in their windows.

    The second axis of programs is the event.
    """
    event = tl.program_id(1)
    begin, end = tl.load(offsets + event), tl.load(offsets + event + 1)
    rows, columns = height // 5, width // 5
    image += event.to(tl.int64) * height * width
    active += event.to(tl.int64) * rows * columns
    for first in range(begin + tl.program_id(0) * BLOCK, end, tl.num_programs(0) * BLOCK):
        place = first + tl.arange(0, BLOCK)
        valid = place < end
        at = tl.load(index + place, mask=valid, other=0)
        tl.store(image + at, tl.load(charge + place, mask=valid, other=0.0), mask=valid)
        y, x = at // width, at % width
        for down in tl.static_range(2):
            for right in tl.static_range(2):
                i, j = (y + 2) // 5 - down, (x + 2) // 5 - right
                touched = (i >= 0) & (i < rows) & (y <= 5 * i + 6) & (j >= 0) & (j < columns) & (x <= 5 * j + 6)
                tl.store(active + i * columns + j, tl.full([BLOCK], 1, tl.uint8), mask=valid & touched)


@triton.jit
def fill_background(image, fill, numbers, filled, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the same CHANNELS values to all positions: `filled` values, then zeros."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = (place % CHANNELS).to(tl.int32)
    value = tl.load(fill + channel, mask=channel < filled, other=0.0)
    tl.store(image + place, value.to(image.dtype.element_ty), mask=place < numbers)


@triton.jit
def arrange(values, order, to, numbers, count, BLOCK: tl.constexpr):
    """Copy `values` in the given order; indices beyond `count` give zero."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(order + place, mask=place < numbers, other=0)
    value = tl.load(values + source, mask=source < count, other=0.0)
    tl.store(to + place, value.to(to.dtype.element_ty), mask=place < numbers)


@triton.jit
def list_active(active, listed, count, total, BLOCK: tl.constexpr):
    """List where `active` is not zero, and count them. The order of blocks in the list is not deterministic."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_active = (tl.load(active + place, mask=place < total, other=0) != 0).to(tl.int32)
    rank = tl.cumsum(is_active, 0)
    base = tl.atomic_add(count, tl.sum(is_active, 0))
    tl.store(listed + base + rank - 1, place, mask=is_active != 0)


@triton.jit
def squares_with_active(
    active, result,
    total, height, width, rows, columns, edges,
    SIDE: tl.constexpr, BEGIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Find which of (rows, columns) squares contain an active position; with `edges`, also those beyond the image.

    The squares have SIDE rows and columns, a distance of five, and start at BEGIN.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = place < total
    above, left = 5 * (place // columns % rows) + BEGIN, 5 * (place % columns) + BEGIN
    event = (place // (rows * columns)).to(tl.int64)
    beyond = (above < 0) | (left < 0) | (above + SIDE > height) | (left + SIDE > width)
    has_active = (beyond & (edges != 0)).to(tl.uint8)
    for step in range(SIDE * SIDE):
        y, x = above + step // SIDE, left + step % SIDE
        inside = valid & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        has_active = has_active | tl.load(active + (event * height + y) * width + x, mask=inside, other=0)
    tl.store(result + place, has_active, mask=valid)
