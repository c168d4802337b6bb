"""Activation functions and their gradients, for use within kernels."""

from __future__ import annotations

import triton
import triton.language as tl

ACTIVATIONS = ("", "relu", "elu", "sigmoid", "tanh")
"""Names of activations. KIND in the kernels is the index in this tuple."""


@triton.jit
def activate(z, KIND: tl.constexpr):
    """Apply an activation; KIND is its index in ACTIVATIONS."""
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
def activation_gradient(dy, y, KIND: tl.constexpr):
    """Return the gradient of an activation's input, given that of its output y."""
    if KIND == 1:
        dy = tl.where(y > 0, dy, 0.0)
    elif KIND == 2:
        dy = dy * tl.where(y > 0, 1.0, y + 1.0)
    elif KIND == 3:
        dy = dy * y * (1 - y)
    elif KIND == 4:
        dy = dy * (1 - y * y)
    return dy
