"""Activations, there and back."""

from __future__ import annotations

import triton
import triton.language as tl

KINDS = ("", "relu", "elu", "sigmoid", "tanh")
"""KIND below is the place in these."""


@triton.jit
def active(z, KIND: tl.constexpr):
    """An activation; KIND is its place in KINDS."""
    if KIND == 1:
        z = tl.maximum(z, 0.0)
    elif KIND == 2:
        z = tl.where(z > 0, z, tl.exp(z) - 1)
    elif KIND == 3:
        z = tl.sigmoid(z)
    elif KIND == 4:
        z = 2 * tl.sigmoid(2 * z) - 1
    return z


@triton.jit
def slope(dy, y, KIND: tl.constexpr):
    """Of what goes into an activation, from that of what comes out."""
    if KIND == 1:
        dy = tl.where(y > 0, dy, 0.0)
    elif KIND == 2:
        dy = dy * tl.where(y > 0, 1.0, y + 1.0)
    elif KIND == 3:
        dy = dy * y * (1 - y)
    elif KIND == 4:
        dy = dy * (1 - y * y)
    return dy
