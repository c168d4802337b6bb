"""On a device: pixels onto an image, and lists of what is active; sizes of lists never leave the device."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scatter(
    index, charge, offsets, image, active,
    pixels, events, height, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Put pixels into their images, and mark the cells that see them."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < pixels
    event = tl.zeros([BLOCK], tl.int64)
    for number in range(1, events):
        event += (place >= tl.load(offsets + number)).to(tl.int64)
    there = there & (place < tl.load(offsets + events))
    at = tl.load(index + place, mask=there, other=0).to(tl.int64)
    tl.store(image + event * height * width + at, tl.load(charge + place, mask=there, other=0.0), mask=there)
    y, x = at // width, at % width
    rows, columns = height // 5, width // 5
    for down in tl.static_range(2):
        for right in tl.static_range(2):
            i, j = (y + 2) // 5 - down, (x + 2) // 5 - right
            seen = (i >= 0) & (i < rows) & (y <= 5 * i + 6) & (j >= 0) & (j < columns) & (x <= 5 * j + 6)
            tl.store(active + (event * rows + i) * columns + j, tl.full([BLOCK], 1, tl.uint8), mask=there & seen)


@triton.jit
def enlist(active, listed, count, total, BLOCK: tl.constexpr):
    """Write down where `active` is not zero, and count; the order of blocks is that of chance."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = (tl.load(active + place, mask=place < total, other=0) != 0).to(tl.int32)
    rank = tl.cumsum(there, 0)
    base = tl.atomic_add(count, tl.sum(there, 0))
    tl.store(listed + base + rank - 1, place, mask=there != 0)
