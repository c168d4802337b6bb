"""A linear layer with its activation: one program computes that of one member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clew.training.packs.kernels.activation import ACTIVATIONS, activate, activation_gradient
from clew.training.packs.stacked_weights import GradientBuffer

MAX_WIDTH = 128
"""Upper limit of the inputs, and of the outputs, of a layer."""
EVENTS = 64
"""Events that a program computes at a time."""


@triton.jit
def forward_kernel(
    x, weight, bias, y,
    events, inputs, outputs, x_model, w_model, b_model,
    KIND: tl.constexpr, EVENTS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Compute y (members, events, outputs) from x (members, events, inputs), which all members may share."""
    model = tl.program_id(0).to(tl.int64)
    e, i, o = tl.program_id(1) * EVENTS + tl.arange(0, EVENTS), tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
    valid = (e < events)[:, None]
    x_tile = tl.load(x + model * x_model + e[:, None] * inputs + i[None, :], valid & (i < inputs)[None, :], 0.0)
    in_layer = (i < inputs)[:, None] & (o < outputs)[None, :]
    w = tl.load(weight + model * w_model + o[None, :] * inputs + i[:, None], in_layer, 0.0)
    z = tl.dot(x_tile, w, input_precision="tf32x3")
    z += tl.load(bias + model * b_model + o, o < outputs, 0.0)[None, :]
    z = activate(z, KIND)
    tl.store(y + (model * events + e)[:, None] * outputs + o[None, :], z, valid & (o < outputs)[None, :])


@triton.jit
def backward_kernel(
    dy, y, x, weight, dx, dweight, dbias,
    events, inputs, outputs, x_model, w_model, dw_model, db_model,
    KIND: tl.constexpr, X_GRADIENT: tl.constexpr,
    EVENTS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of weight and bias, and that of x if X_GRADIENT."""
    model = tl.program_id(0).to(tl.int64)
    i, o = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
    in_layer, place = (o < outputs)[:, None] & (i < inputs)[None, :], o[:, None] * inputs + i[None, :]
    w = tl.load(weight + model * w_model + place, in_layer, 0.0)
    of_weight, of_bias = tl.zeros([OUTPUTS, INPUTS], tl.float32), tl.zeros([OUTPUTS], tl.float32)
    for first in range(0, events, EVENTS):
        e = first + tl.arange(0, EVENTS)
        valid = (e < events)[:, None]
        y_place, y_valid = (model * events + e)[:, None] * outputs + o[None, :], valid & (o < outputs)[None, :]
        dz, value = tl.load(dy + y_place, y_valid, 0.0), tl.load(y + y_place, y_valid, 0.0)
        dz = activation_gradient(dz, value, KIND)
        x_tile = tl.load(x + model * x_model + e[:, None] * inputs + i[None, :], valid & (i < inputs)[None, :], 0.0)
        of_weight = tl.dot(tl.trans(dz), x_tile, of_weight, input_precision="tf32x3")
        of_bias += tl.sum(dz, 0)
        if X_GRADIENT:
            of_x = tl.dot(dz, w, input_precision="tf32x3")
            tl.store(dx + (model * events + e)[:, None] * inputs + i[None, :], of_x, valid & (i < inputs)[None, :])
    tl.store(dweight + model * dw_model + place, of_weight, in_layer)
    tl.store(dbias + model * db_model + o, of_bias, o < outputs)


class StackedLinearFunction(torch.autograd.Function):
    """activation(x W^T + b) of every member. `activation` is a name in ACTIVATIONS; `buffers` are the places for the
    gradients of weight and bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, activation: str, buffers: Sequence[GradientBuffer | None]
    ) -> Tensor:
        models, outputs, inputs = weight.shape
        events = x.shape[1]
        y = x.new_empty(models, events, outputs)
        strides = (x.stride(0), weight.stride(0), bias.stride(0))
        forward_kernel[(models, triton.cdiv(events, EVENTS))](
            x, weight, bias, y, events, inputs, outputs, *strides,
            KIND=ACTIVATIONS.index(activation), **_padded_sizes(inputs, outputs),
        )  # fmt: skip
        ctx.save_for_backward(x, weight, y)
        ctx.activation, ctx.buffers = activation, buffers
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        x, weight, y = ctx.saved_tensors
        models, outputs, inputs = weight.shape
        x_gradient, events = ctx.needs_input_grad[0], x.shape[1]
        dx = x.new_empty(models, events, inputs) if x_gradient else y
        shapes = (models, outputs, inputs), (models, outputs)
        dweight, dbias = (_claim(buffer, x, shape) for buffer, shape in zip(ctx.buffers, shapes, strict=True))
        sizes = (events, inputs, outputs, *(tensor.stride(0) for tensor in (x, weight, dweight, dbias)))
        backward_kernel[(models,)](
            gradients[0].contiguous(), y, x, weight, dx, dweight, dbias, *sizes,
            KIND=ACTIVATIONS.index(ctx.activation), X_GRADIENT=x_gradient, **_padded_sizes(inputs, outputs),
        )  # fmt: skip
        return dx if x_gradient else None, dweight, dbias, None, None


def _claim(buffer: GradientBuffer | None, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    tensor = buffer.claim() if buffer is not None else None
    return like.new_empty(shape) if tensor is None else tensor


def _padded_sizes(inputs: int, outputs: int) -> dict[str, int]:
    padded = (max(16, triton.next_power_of_2(width)) for width in (inputs, outputs))
    return {"EVENTS": EVENTS, **dict(zip(("INPUTS", "OUTPUTS"), padded, strict=True))}


def supports(x: Tensor, weight: Tensor) -> bool:
    """Return whether the kernels can compute a layer: contiguous rows, and a layer that fits into one program."""
    rows = x.ndim == 3 and x.stride(2) == 1 and x.stride(1) == x.shape[2]
    return rows and weight.dtype == torch.float32 and weight[0].is_contiguous() and max(weight.shape[1:]) <= MAX_WIDTH
