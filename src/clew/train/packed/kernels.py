"""Layers and the optimiser of many small models on a device, by Triton: each as one kernel instead of three to five.

At 256 models of 10,000 weights a step is bound by the number of kernels and by products that are too small for a
library: a program here does a whole layer of one model. Products are done as three in TF32, which is as exact as one in
single precision.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clew.train.packed.stack import Lent

WIDEST = 128
"""Inputs and outputs of a layer."""
NARROW = 64
"""The same of a layer in a chain."""
EVENTS = 64
BLOCK = 1024
KINDS = ("", "relu", "elu", "sigmoid", "tanh")
WARPS, BACK_WARPS = 4, 4
"""Of a program that does a chain, and of one that goes back through it."""


@triton.jit
def _active(z, KIND: tl.constexpr):
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
def _slope(dy, y, KIND: tl.constexpr):
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
    z = _active(z, KIND)
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
        dz = _slope(dz, value, KIND)
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


@triton.jit
def _chain(
    x, table, hidden, y,
    events, x_model, row,
    WIDTHS: tl.constexpr, PADDED: tl.constexpr, PLACES: tl.constexpr, KINDS: tl.constexpr, BEFORE: tl.constexpr,
    EVENTS: tl.constexpr,
):  # fmt: skip
    """y (models, events, outputs) of x (models, events, inputs), through layers of these widths; their weights and
    biases lie at PLACES of a row of the table. What is between them is kept: layer after layer of one model."""
    model = tl.program_id(0).to(tl.int64)
    e, i = tl.arange(0, EVENTS), tl.arange(0, PADDED[0])
    there, own, kept = (e < events)[:, None], table + model * row, hidden + model * events * BEFORE[-1]
    z = tl.load(x + model * x_model + e[:, None] * WIDTHS[0] + i[None, :], there & (i < WIDTHS[0])[None, :], 0.0)
    for n in tl.static_range(len(KINDS)):
        i, o = tl.arange(0, PADDED[n]), tl.arange(0, PADDED[n + 1])
        in_layer = (i < WIDTHS[n])[:, None] & (o < WIDTHS[n + 1])[None, :]
        w = tl.load(own + PLACES[2 * n] + o[None, :] * WIDTHS[n] + i[:, None], in_layer, 0.0)
        z = tl.dot(z, w, input_precision="tf32x3")
        z += tl.load(own + PLACES[2 * n + 1] + o, o < WIDTHS[n + 1], 0.0)[None, :]
        z = _active(z, KINDS[n])
        out = kept + events * BEFORE[n] if n + 1 < len(KINDS) else y + model * events * WIDTHS[n + 1]
        tl.store(out + e[:, None] * WIDTHS[n + 1] + o[None, :], z, there & (o < WIDTHS[n + 1])[None, :])


@triton.jit
def _chain_back(
    dy, y, x, table, hidden, dx, slopes,
    events, x_model, row,
    WIDTHS: tl.constexpr, PADDED: tl.constexpr, PLACES: tl.constexpr, KINDS: tl.constexpr, BEFORE: tl.constexpr,
    EVENTS: tl.constexpr, WANTED: tl.constexpr,
):  # fmt: skip
    """Gradients of all weights and biases, in a table of the same form; that of x if WANTED."""
    model = tl.program_id(0).to(tl.int64)
    e, o = tl.arange(0, EVENTS), tl.arange(0, PADDED[-1])
    there, own, into = (e < events)[:, None], table + model * row, slopes + model * row
    at, there_too = (model * events + e)[:, None] * WIDTHS[-1] + o[None, :], there & (o < WIDTHS[-1])[None, :]
    dz, value = tl.load(dy + at, there_too, 0.0), tl.load(y + at, there_too, 0.0)
    for n in tl.static_range(len(KINDS) - 1, -1, -1):
        i, o = tl.arange(0, PADDED[n]), tl.arange(0, PADDED[n + 1])
        before = x + model * x_model if n == 0 else hidden + model * events * BEFORE[-1] + events * BEFORE[n - 1]
        seen = tl.load(before + e[:, None] * WIDTHS[n] + i[None, :], there & (i < WIDTHS[n])[None, :], 0.0)
        in_layer = (o < WIDTHS[n + 1])[:, None] & (i < WIDTHS[n])[None, :]
        place = PLACES[2 * n] + o[:, None] * WIDTHS[n] + i[None, :]
        dz = _slope(dz, value, KINDS[n])
        tl.store(into + place, tl.dot(tl.trans(dz), seen, input_precision="tf32x3"), in_layer)
        tl.store(into + PLACES[2 * n + 1] + o, tl.sum(dz, 0), o < WIDTHS[n + 1])
        if n > 0 or WANTED:
            w = tl.load(own + place, in_layer, 0.0)
            dz = tl.dot(dz, w, input_precision="tf32x3")
        value = seen
    if WANTED:
        i = tl.arange(0, PADDED[0])
        tl.store(dx + (model * events + e)[:, None] * WIDTHS[0] + i[None, :], dz, there & (i < WIDTHS[0])[None, :])


class Chain(torch.autograd.Function):
    """Layers one after the other. `given` are weight and bias of each, in rows of one table; `lent` as many places for
    their gradients, in another one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kinds: tuple[str, ...], lent: Sequence[Lent | None], *given: Tensor) -> Tensor:
        widths = (given[0].shape[2], *(each.shape[1] for each in given[::2]))
        models, events = len(given[0]), x.shape[1]
        before = (0, *itertools.accumulate(widths[1:-1]))
        ctx.sizes = {
            "WIDTHS": widths, "PADDED": tuple(max(16, triton.next_power_of_2(each)) for each in widths),
            "PLACES": tuple(each.storage_offset() for each in given), "KINDS": tuple(map(KINDS.index, kinds)),
            "BEFORE": before, "EVENTS": max(16, triton.next_power_of_2(events)),
        }  # fmt: skip
        hidden, y = x.new_empty(models, events * before[-1]), x.new_empty(models, events, widths[-1])
        table = _table(given[0])
        _chain[(models,)](x, table, hidden, y, events, x.stride(0), table.stride(0), **ctx.sizes, num_warps=WARPS)
        ctx.save_for_backward(x, table, hidden, y)
        ctx.lent, ctx.like = lent, [(each.shape, each.stride(), each.storage_offset()) for each in given]
        return y

    @staticmethod
    def backward(ctx: Any, *slope: Any) -> tuple[Tensor | None, ...]:
        x, table, hidden, y = ctx.saved_tensors
        models, events, wanted = len(table), x.shape[1], ctx.needs_input_grad[0]
        lent = [each.take() for each in ctx.lent if each is not None]
        places = [each for each in lent if each is not None and each.stride(0) == table.stride(0)]
        slopes = _table(places[0]) if len(places) == len(ctx.like) else torch.empty_like(table)
        dx = x.new_empty(x.shape) if wanted else y
        given = (slope[0].contiguous(), y, x, table, hidden, dx, slopes, events, x.stride(0), table.stride(0))
        _chain_back[(models,)](*given, **ctx.sizes, WANTED=wanted, num_warps=BACK_WARPS)
        return dx if wanted else None, None, None, *(slopes.as_strided(*each) for each in ctx.like)


def _table(part: Tensor) -> Tensor:
    """The table that something is a part of: rows one after the other, from the first byte on."""
    return part.detach().as_strided((len(part), part.stride(0)), (part.stride(0), 1), 0)


def chained(x: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether layers can be done as a chain: few events, narrow layers, all weights and biases in rows of one table."""
    rows = x.ndim == 3 and x.stride(2) == 1 and x.stride(1) == x.shape[2] and x.shape[1] <= EVENTS
    tables = {(each.untyped_storage().data_ptr(), each.stride(0)) for each in given}
    plain = all(each.dtype == torch.float32 and each[0].is_contiguous() for each in given)
    return rows and plain and len(tables) == 1 and max(max(each.shape[1:]) for each in given) <= NARROW


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
