"""On a device: back through ELU in one pass, with the sums over cells that a block needs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def back_through(
    gradient, y, active, inner, sums,
    total, channels, y_stride,
    PADDED: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    """The gradient before ELU in active cells, 0 elsewhere.

    To `sums` (2, PADDED), float32, are added: what arrived where nothing is active, and what was written.
    """
    c = tl.arange(0, PADDED)
    idle, passed = tl.zeros([PADDED], tl.float32), tl.zeros([PADDED], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(total, CELLS), tl.num_programs(0)):
        m = tile * CELLS + tl.arange(0, CELLS)
        kept = (m < total)[:, None] & (c < channels)[None, :]
        works = (tl.load(active + m, mask=m < total, other=0) != 0)[:, None]
        cell = m.to(tl.int64)[:, None]
        arrived = tl.load(gradient + cell * channels + c[None, :], mask=kept, other=0.0).to(tl.float32)
        value = tl.load(y + cell * y_stride + c[None, :], mask=kept, other=0.0).to(tl.float32)
        found = tl.where(works, arrived * tl.where(value > 0, 1.0, value + 1.0), 0.0)
        tl.store(inner + cell * channels + c[None, :], found.to(inner.dtype.element_ty), mask=kept)
        idle += tl.sum(tl.where(works, 0.0, arrived), 0)
        passed += tl.sum(found, 0)
    tl.atomic_add(sums + c, idle)
    tl.atomic_add(sums + PADDED + c, passed)
