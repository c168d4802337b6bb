"""Hash codes and a stable counting sort, in three passes over blocks of rows that run in parallel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

KEYS = 16
"""Number of keys: the hash codes and one for empty rows, padded to 16 for the tensor cores."""
BLOCKS_PER_EVENT = 64
"""Blocks of an event that are counted together: usually all blocks of an event."""


@triton.jit
def _codes(x, book, fill, code, counts, square, rows, size, half: tl.constexpr, d: tl.constexpr, block: tl.constexpr):
    """Compute the code of every row, the counts of the codes in the block, and the squared norms of rows."""
    place, stack = tl.program_id(0), tl.program_id(1)
    row = place * block + tl.arange(0, block)
    feature, key = tl.arange(0, d), tl.arange(0, 16)
    values = tl.load(x + (stack * rows + row).to(tl.int64)[:, None] * d + feature[None, :])
    along = tl.dot(values, tl.load(book + stack * d * 16 + feature[:, None] * 16 + key[None, :]))
    up = tl.where(key[None, :] < half, along, -float("inf"))
    down = tl.where(key[None, :] < half, -along, -float("inf"))
    codes = tl.where(tl.max(up, 1) >= tl.max(down, 1), tl.argmax(up, 1), tl.argmax(down, 1) + half)
    codes = tl.where(row % size < tl.load(fill + row // size), codes, 2 * half)
    tl.store(code + stack * rows + row, codes)
    same = (codes[:, None] == key[None, :]).to(tl.int32)
    tl.store(counts + (stack * (rows // block) + place) * 16 + key, tl.sum(same, 0))
    wide = values.to(tl.float32)
    tl.store(square + stack * rows + row, tl.sum(wide * wide, 1))


@triton.jit
def _bases(counts, first, base, blocks, per, block: tl.constexpr, near: tl.constexpr):
    """Compute the first slot of each block and code: after smaller codes of the event, and after its earlier blocks."""
    event, stack = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(first + event) * per, tl.load(first + event + 1) * per
    number, key = tl.arange(0, near), tl.arange(0, 16)
    total = tl.zeros([16], tl.int32)
    for place in range(begin, end, near):
        where = (stack * blocks + place + number)[:, None] * 16 + key[None, :]
        total += tl.sum(tl.load(counts + where, mask=(place + number < end)[:, None], other=0), 0)
    start = begin * block + tl.cumsum(total, 0) - total
    for place in range(begin, end, near):
        where = (stack * blocks + place + number)[:, None] * 16 + key[None, :]
        valid = (place + number < end)[:, None]
        block_counts = tl.load(counts + where, mask=valid, other=0)
        tl.store(base + where, start[None, :] + tl.cumsum(block_counts, 0) - block_counts, mask=valid)
        start += tl.sum(block_counts, 0)


@triton.jit
def _places(code, base, index, rows, block: tl.constexpr):
    """Write the number of every row to its slot."""
    place, stack = tl.program_id(0), tl.program_id(1)
    row, key = place * block + tl.arange(0, block), tl.arange(0, 16)
    same = (tl.load(code + stack * rows + row)[:, None] == key[None, :]).to(tl.int32)
    start = tl.load(base + (stack * (rows // block) + place) * 16 + key)
    target = tl.sum(same * (tl.cumsum(same, 0) - 1 + start[None, :]), 1)
    tl.store(index + stack * rows + target, stack * rows + row)


def sort_by_hash(x: Tensor, book: Tensor, fill: Tensor, first: Tensor, size: int, half: int) -> tuple[Tensor, Tensor]:
    """Sort rows by event and hash code.

    Args:
        x: Distance features (stacks, rows, d).
        book: Codebook (stacks, d, KEYS).
        fill: int32 (bins,), elements in each bin.
        first: int32 (events + 1,), the first bin of every event, and the number of all bins.
        size: Rows per bin.
        half: Half the number of hash codes.

    Returns:
        The row in each slot, counted over both stacks, int32 (stacks * rows,), and the squared norms of rows.
    """
    stacks, rows, width = x.shape
    block = next(each for each in (128, 64, 32, 16) if size % each == 0)
    blocks, per = rows // block, size // block
    code, index = (x.new_empty(stacks * rows, dtype=torch.int32) for _ in range(2))
    counts, base = (x.new_empty(stacks * blocks * KEYS, dtype=torch.int32) for _ in range(2))
    square = x.new_empty(stacks * rows, dtype=torch.float32)
    grid = (blocks, stacks)
    _codes[grid](x, book, fill, code, counts, square, rows, size, half=half, d=width, block=block, num_warps=4)
    _bases[(len(first) - 1, stacks)](counts, first, base, blocks, per, block=block, near=BLOCKS_PER_EVENT, num_warps=4)
    _places[grid](code, base, index, rows, block=block, num_warps=4)
    return index, square
