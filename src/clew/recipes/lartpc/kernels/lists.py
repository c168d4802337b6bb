"""On a device: pixels onto an image, background, and lists of what is active; their sizes never leave the device."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scatter(index, charge, offsets, image, active, height, width, BLOCK: tl.constexpr):
    """Put pixels into their images, and mark the cells that see them; the second axis of programs is the event."""
    event = tl.program_id(1)
    begin, end = tl.load(offsets + event), tl.load(offsets + event + 1)
    rows, columns = height // 5, width // 5
    image += event.to(tl.int64) * height * width
    active += event.to(tl.int64) * rows * columns
    for first in range(begin + tl.program_id(0) * BLOCK, end, tl.num_programs(0) * BLOCK):
        place = first + tl.arange(0, BLOCK)
        there = place < end
        at = tl.load(index + place, mask=there, other=0)
        tl.store(image + at, tl.load(charge + place, mask=there, other=0.0), mask=there)
        y, x = at // width, at % width
        for down in tl.static_range(2):
            for right in tl.static_range(2):
                i, j = (y + 2) // 5 - down, (x + 2) // 5 - right
                seen = (i >= 0) & (i < rows) & (y <= 5 * i + 6) & (j >= 0) & (j < columns) & (x <= 5 * j + 6)
                tl.store(active + i * columns + j, tl.full([BLOCK], 1, tl.uint8), mask=there & seen)


@triton.jit
def paint(image, fill, numbers, filled, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """The same CHANNELS everywhere: `filled` of them, and zeros."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = (place % CHANNELS).to(tl.int32)
    value = tl.load(fill + channel, mask=channel < filled, other=0.0)
    tl.store(image + place, value.to(image.dtype.element_ty), mask=place < numbers)


@triton.jit
def arrange(values, order, to, numbers, count, BLOCK: tl.constexpr):
    """`values` in another order, and zero where that is beyond `count`."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(order + place, mask=place < numbers, other=0)
    value = tl.load(values + own, mask=own < count, other=0.0)
    tl.store(to + place, value.to(to.dtype.element_ty), mask=place < numbers)


@triton.jit
def enlist(active, listed, count, total, BLOCK: tl.constexpr):
    """Write down where `active` is not zero, and count; the order of blocks is that of chance."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = (tl.load(active + place, mask=place < total, other=0) != 0).to(tl.int32)
    rank = tl.cumsum(there, 0)
    base = tl.atomic_add(count, tl.sum(there, 0))
    tl.store(listed + base + rank - 1, place, mask=there != 0)


@triton.jit
def look(
    active, found,
    total, height, width, rows, columns, edges,
    SIDE: tl.constexpr, BEGIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Which of (rows, columns) squares of SIDE, five apart and beginning at BEGIN, have something active in them.

    With `edges`, also those that reach beyond the image.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < total
    above, left = 5 * (place // columns % rows) + BEGIN, 5 * (place % columns) + BEGIN
    event = (place // (rows * columns)).to(tl.int64)
    beyond = (above < 0) | (left < 0) | (above + SIDE > height) | (left + SIDE > width)
    seen = (beyond & (edges != 0)).to(tl.uint8)
    for step in range(SIDE * SIDE):
        y, x = above + step // SIDE, left + step % SIDE
        inside = there & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        seen = seen | tl.load(active + (event * height + y) * width + x, mask=inside, other=0)
    tl.store(found + place, seen, mask=there)
