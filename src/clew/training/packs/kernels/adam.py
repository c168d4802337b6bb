"""Adam with separate settings for every member."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def adam_kernel(
    weights, gradients, means, squares, scalars, decay, beta1, beta2, eps,
    parameters, members,
    DECAYS: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid, place = column < parameters, row.to(tl.int64) * parameters + column
    rate, first, second = tl.load(scalars + row), tl.load(scalars + members + row), tl.load(scalars + 2 * members + row)
    b1, b2, epsilon = tl.load(beta1 + row), tl.load(beta2 + row), tl.load(eps + row)
    w, g = tl.load(weights + place, valid, 0.0), tl.load(gradients + place, valid, 0.0)
    m, v = tl.load(means + place, valid, 0.0), tl.load(squares + place, valid, 0.0)
    if DECAYS and DECOUPLED:
        w = w * (1 - rate * tl.load(decay + row))
    elif DECAYS:
        g = g + w * tl.load(decay + row)
    m = m + (g - m) * (1 - b1)
    v = v * b2 + g * (1 - b2) * g
    w = w - rate / first * m / (tl.sqrt_rn(v) / second + epsilon)
    tl.store(weights + place, w, valid)
    tl.store(means + place, m, valid)
    tl.store(squares + place, v, valid)


class AdamTables(NamedTuple):
    """What Adam reads and writes; the tables are (members, parameters)."""

    weights: Tensor
    gradients: Tensor
    state: list[Tensor]
    """The means of the gradients and of their squares."""
    numbers: list[Tensor]
    """Decay, beta1, beta2 and eps, (members, 1) each."""


def adam(tables: AdamTables, scalars: Tensor, *, decays: bool, decoupled: bool) -> None:
    """Perform a step of Adam for every member, in place.

    Args:
        tables: Weights, gradients, state and settings.
        scalars: The numbers of the step, (4, members), see `PackOptimizer`.
        decays: Whether any member has weight decay.
        decoupled: Whether the decay is that of AdamW.
    """
    members, parameters = tables.weights.shape
    grid = (triton.cdiv(parameters, BLOCK), members)
    adam_kernel[grid](
        tables.weights, tables.gradients, *tables.state, scalars, *tables.numbers, parameters, members,
        DECAYS=decays, DECOUPLED=decoupled, BLOCK=BLOCK,
    )  # fmt: skip
