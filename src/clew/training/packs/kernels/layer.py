"""A linear layer with its activation: a program does that of one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clew.training.packs.kernels.activation import KINDS, active, slope
from clew.training.packs.stacked_weights import Lent

WIDEST = 128
"""Inputs and outputs of a layer."""
EVENTS = 64


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
    z = active(z, KIND)
    tl.store(y + (model * events + e)[:, None] * outputs + o[None, :], z, there & (o < outputs)[None, :])


@triton.jit
def _back(
    dy, y, x, weight, dx, dweight, dbias,
    events, inputs, outputs, x_model, w_model, dw_model, db_model,
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
        dz = slope(dz, value, KIND)
        seen = tl.load(x + model * x_model + e[:, None] * inputs + i[None, :], there & (i < inputs)[None, :], 0.0)
        of_weight = tl.dot(tl.trans(dz), seen, of_weight, input_precision="tf32x3")
        of_bias += tl.sum(dz, 0)
        if WANTED:
            found = tl.dot(dz, w, input_precision="tf32x3")
            tl.store(dx + (model * events + e)[:, None] * inputs + i[None, :], found, there & (i < inputs)[None, :])
    tl.store(dweight + model * dw_model + place, of_weight, own)
    tl.store(dbias + model * db_model + o, of_bias, o < outputs)


class Layer(torch.autograd.Function):
    """act(x W^T + b) of every model; `kind` is that of `lift`, `lent` where gradients are wanted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, kind: str, lent: Sequence[Lent | None]) -> Tensor:
        models, outputs, inputs = weight.shape
        events = x.shape[1]
        y = x.new_empty(models, events, outputs)
        strides = (x.stride(0), weight.stride(0), bias.stride(0))
        _forward[(models, triton.cdiv(events, EVENTS))](
            x, weight, bias, y, events, inputs, outputs, *strides, KIND=KINDS.index(kind), **_sizes(inputs, outputs)
        )
        ctx.save_for_backward(x, weight, y)
        ctx.kind, ctx.lent = kind, lent
        return y

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        x, weight, y = ctx.saved_tensors
        models, outputs, inputs = weight.shape
        wanted, events = ctx.needs_input_grad[0], x.shape[1]
        dx = x.new_empty(models, events, inputs) if wanted else y
        shapes = (models, outputs, inputs), (models, outputs)
        dweight, dbias = (_place(each, x, shape) for each, shape in zip(ctx.lent, shapes, strict=True))
        sizes = (events, inputs, outputs, *(each.stride(0) for each in (x, weight, dweight, dbias)))
        _back[(models,)](
            given[0].contiguous(), y, x, weight, dx, dweight, dbias, *sizes,
            KIND=KINDS.index(ctx.kind), WANTED=wanted, **_sizes(inputs, outputs),
        )  # fmt: skip
        return dx if wanted else None, dweight, dbias, None, None


def _place(lent: Lent | None, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    found = lent.take() if lent is not None else None
    return like.new_empty(shape) if found is None else found


def _sizes(inputs: int, outputs: int) -> dict[str, int]:
    padded = (max(16, triton.next_power_of_2(each)) for each in (inputs, outputs))
    return {"EVENTS": EVENTS, **dict(zip(("INPUTS", "OUTPUTS"), padded, strict=True))}


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether a layer can be done by these kernels: rows one after the other, and a layer that a program can hold."""
    rows = x.ndim == 3 and x.stride(2) == 1 and x.stride(1) == x.shape[2]
    return rows and weight.dtype == torch.float32 and weight[0].is_contiguous() and max(weight.shape[1:]) <= WIDEST
