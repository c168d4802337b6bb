"""Layers and the optimiser of many small models on a device, by Triton: each as one kernel instead of three to five.

At 256 models of 10,000 weights a step is bound by the number of kernels and by products that are too small for a
library: a program here does a whole layer of one model. Products are done as three in TF32, which is as exact as one in
single precision.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 128
"""Inputs and outputs of a layer."""
EVENTS = 64
BLOCK = 1024


@triton.jit
def _forward(
    x, weight, bias, y,
    events, inputs, outputs, x_model, w_model, b_model,
    KIND: tl.constexpr, EVENTS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """y (models, events, outputs) of x (models, events, inputs), which all models may share."""
    model = tl.program_id(0).to(tl.int64)
    e, i, o = tl.program_id(1) * EVENTS + tl.arange(0, EVENTS), tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
    there = (e < events)[:, None]
    seen = tl.load(x + model * x_model + e[:, None] * inputs + i[None, :], there & (i < inputs)[None, :], 0.0)
    own = (i < inputs)[:, None] & (o < outputs)[None, :]
    w = tl.load(weight + model * w_model + o[None, :] * inputs + i[:, None], own, 0.0)
    z = tl.dot(seen, w, input_precision="tf32x3")
    z += tl.load(bias + model * b_model + o, o < outputs, 0.0)[None, :]
    if KIND == "relu":
        z = tl.maximum(z, 0.0)
    elif KIND == "elu":
        z = tl.where(z > 0, z, tl.exp(z) - 1)
    elif KIND == "sigmoid":
        z = tl.sigmoid(z)
    elif KIND == "tanh":
        z = 2 * tl.sigmoid(2 * z) - 1
    tl.store(y + (model * events + e)[:, None] * outputs + o[None, :], z, there & (o < outputs)[None, :])


@triton.jit
def _back(
    dy, y, x, weight, dx, dweight, dbias,
    events, inputs, outputs, x_model, w_model,
    KIND: tl.constexpr, WANTED: tl.constexpr,
    EVENTS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Gradients of all that a layer has; that of x if WANTED."""
    model = tl.program_id(0).to(tl.int64)
    i, o = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
    own, place = (o < outputs)[:, None] & (i < inputs)[None, :], o[:, None] * inputs + i[None, :]
    w = tl.load(weight + model * w_model + place, own, 0.0)
    of_weight, of_bias = tl.zeros([OUTPUTS, INPUTS], tl.float32), tl.zeros([OUTPUTS], tl.float32)
    for first in range(0, events, EVENTS):
        e = first + tl.arange(0, EVENTS)
        there = (e < events)[:, None]
        at, kept = (model * events + e)[:, None] * outputs + o[None, :], there & (o < outputs)[None, :]
        dz, value = tl.load(dy + at, kept, 0.0), tl.load(y + at, kept, 0.0)
        if KIND == "relu":
            dz = tl.where(value > 0, dz, 0.0)
        elif KIND == "elu":
            dz = dz * tl.where(value > 0, 1.0, value + 1.0)
        elif KIND == "sigmoid":
            dz = dz * value * (1 - value)
        elif KIND == "tanh":
            dz = dz * (1 - value * value)
        seen = tl.load(x + model * x_model + e[:, None] * inputs + i[None, :], there & (i < inputs)[None, :], 0.0)
        of_weight = tl.dot(tl.trans(dz), seen, of_weight, input_precision="tf32x3")
        of_bias += tl.sum(dz, 0)
        if WANTED:
            found = tl.dot(dz, w, input_precision="tf32x3")
            tl.store(dx + (model * events + e)[:, None] * inputs + i[None, :], found, there & (i < inputs)[None, :])
    tl.store(dweight + model * outputs * inputs + place, of_weight, own)
    tl.store(dbias + model * outputs + o, of_bias, o < outputs)


class Layer(torch.autograd.Function):
    """act(x W^T + b) of every model; `kind` is that of `lift`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, kind: str) -> Tensor:
        models, outputs, inputs = weight.shape
        events = x.shape[1]
        y = x.new_empty(models, events, outputs)
        strides = (x.stride(0), weight.stride(0), bias.stride(0))
        _forward[(models, triton.cdiv(events, EVENTS))](
            x, weight, bias, y, events, inputs, outputs, *strides, KIND=kind, **_sizes(inputs, outputs)
        )
        ctx.save_for_backward(x, weight, y)
        ctx.kind = kind
        return y

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight, y = ctx.saved_tensors
        models, outputs, inputs = weight.shape
        wanted, events = ctx.needs_input_grad[0], x.shape[1]
        dx = x.new_empty(models, events, inputs) if wanted else y
        dweight, dbias = x.new_empty(models, outputs, inputs), x.new_empty(models, outputs)
        sizes = (events, inputs, outputs, x.stride(0), weight.stride(0))
        _back[(models,)](
            given[0].contiguous(), y, x, weight, dx, dweight, dbias, *sizes,
            KIND=ctx.kind, WANTED=wanted, **_sizes(inputs, outputs),
        )  # fmt: skip
        return dx if wanted else None, dweight, dbias, None


def _sizes(inputs: int, outputs: int) -> dict[str, int]:
    padded = (max(16, triton.next_power_of_2(each)) for each in (inputs, outputs))
    return {"EVENTS": EVENTS, **dict(zip(("INPUTS", "OUTPUTS"), padded, strict=True))}


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether a layer can be done by these kernels: rows one after the other, and a layer that a program can hold."""
    rows = x.ndim == 3 and x.stride(2) == 1 and x.stride(1) == x.shape[2]
    return rows and weight.dtype == torch.float32 and weight[0].is_contiguous() and max(weight.shape[1:]) <= WIDEST


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
