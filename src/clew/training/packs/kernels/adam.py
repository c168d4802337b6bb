"""Adam, with settings of its own for every model."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _adam(
    weights, gradients, means, squares, scalars, decay, beta1, beta2, eps,
    parameters, models,
    DECAYS: tl.constexpr, APART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there, at = place < parameters, row.to(tl.int64) * parameters + place
    rate, first, second = tl.load(scalars + row), tl.load(scalars + models + row), tl.load(scalars + 2 * models + row)
    b1, b2, least = tl.load(beta1 + row), tl.load(beta2 + row), tl.load(eps + row)
    w, g = tl.load(weights + at, there, 0.0), tl.load(gradients + at, there, 0.0)
    m, v = tl.load(means + at, there, 0.0), tl.load(squares + at, there, 0.0)
    if DECAYS and APART:
        w = w * (1 - rate * tl.load(decay + row))
    elif DECAYS:
        g = g + w * tl.load(decay + row)
    m = m + (g - m) * (1 - b1)
    v = v * b2 + g * (1 - b2) * g
    w = w - rate / first * m / (tl.sqrt_rn(v) / second + least)
    tl.store(weights + at, w, there)
    tl.store(means + at, m, there)
    tl.store(squares + at, v, there)


def adam(
    weights: Tensor, gradients: Tensor, state: list[Tensor], scalars: Tensor, numbers: list[Tensor], *, decays: bool,
    apart: bool,
) -> None:  # fmt: skip
    """A step of Adam (`apart`: AdamW) of every row; `scalars` as in `Rows`, `numbers`: decay, beta1, beta2, eps."""
    models, parameters = weights.shape
    grid = (triton.cdiv(parameters, BLOCK), models)
    _adam[grid](
        weights, gradients, *state, scalars, *numbers, parameters, models, DECAYS=decays, APART=apart, BLOCK=BLOCK
    )
