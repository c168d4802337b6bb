"""Several linear layers in sequence: one program computes those of one member."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clew.training.packs.kernels.activation import ACTIVATIONS, activate, activation_gradient
from clew.training.packs.stacked_weights import GradientBuffer

MAX_WIDTH = 64
"""Upper limit of the inputs, and of the outputs, of a layer."""
MAX_EVENTS = 64
"""Upper limit of the events of a batch."""
WARPS = 4
"""Warps per program. With eight (Triton 3.6, H200) the backward pass was slower, and in the forward pass CUDA reported
an illegal access, although no address here is out of bounds."""


@triton.jit
def chain_kernel(
    x, table, hidden, y,
    events, x_model, row,
    WIDTHS: tl.constexpr, PADDED: tl.constexpr, PLACES: tl.constexpr, KINDS: tl.constexpr, BEFORE: tl.constexpr,
    EVENTS: tl.constexpr,
):  # fmt: skip
    """Compute y (members, events, outputs) from x (members, events, inputs), through layers of these widths.

    Weights and biases are at PLACES in a row of the table. The values between the layers are stored in `hidden`, layer
    after layer of one member.
    """
    model = tl.program_id(0).to(tl.int64)
    e, i = tl.arange(0, EVENTS), tl.arange(0, PADDED[0])
    valid, weights, between = (e < events)[:, None], table + model * row, hidden + model * events * BEFORE[-1]
    z = tl.load(x + model * x_model + e[:, None] * WIDTHS[0] + i[None, :], valid & (i < WIDTHS[0])[None, :], 0.0)
    for n in tl.static_range(len(KINDS)):
        i, o = tl.arange(0, PADDED[n]), tl.arange(0, PADDED[n + 1])
        in_layer = (i < WIDTHS[n])[:, None] & (o < WIDTHS[n + 1])[None, :]
        w = tl.load(weights + PLACES[2 * n] + o[None, :] * WIDTHS[n] + i[:, None], in_layer, 0.0)
        z = tl.dot(z, w, input_precision="tf32x3")
        z += tl.load(weights + PLACES[2 * n + 1] + o, o < WIDTHS[n + 1], 0.0)[None, :]
        z = activate(z, KINDS[n])
        out = between + events * BEFORE[n] if n + 1 < len(KINDS) else y + model * events * WIDTHS[n + 1]
        tl.store(out + e[:, None] * WIDTHS[n + 1] + o[None, :], z, valid & (o < WIDTHS[n + 1])[None, :])


@triton.jit
def chain_backward_kernel(
    dy, y, x, table, hidden, dx, gradients,
    events, x_model, row,
    WIDTHS: tl.constexpr, PADDED: tl.constexpr, PLACES: tl.constexpr, KINDS: tl.constexpr, BEFORE: tl.constexpr,
    EVENTS: tl.constexpr, X_GRADIENT: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of all weights and biases, in a table of the same form, and that of x if X_GRADIENT."""
    model = tl.program_id(0).to(tl.int64)
    e, o = tl.arange(0, EVENTS), tl.arange(0, PADDED[-1])
    valid, weights, into = (e < events)[:, None], table + model * row, gradients + model * row
    y_place, y_valid = (model * events + e)[:, None] * WIDTHS[-1] + o[None, :], valid & (o < WIDTHS[-1])[None, :]
    dz, value = tl.load(dy + y_place, y_valid, 0.0), tl.load(y + y_place, y_valid, 0.0)
    for n in tl.static_range(len(KINDS) - 1, -1, -1):
        i, o = tl.arange(0, PADDED[n]), tl.arange(0, PADDED[n + 1])
        before = x + model * x_model if n == 0 else hidden + model * events * BEFORE[-1] + events * BEFORE[n - 1]
        inputs = tl.load(before + e[:, None] * WIDTHS[n] + i[None, :], valid & (i < WIDTHS[n])[None, :], 0.0)
        in_layer = (o < WIDTHS[n + 1])[:, None] & (i < WIDTHS[n])[None, :]
        place = PLACES[2 * n] + o[:, None] * WIDTHS[n] + i[None, :]
        dz = activation_gradient(dz, value, KINDS[n])
        tl.store(into + place, tl.dot(tl.trans(dz), inputs, input_precision="tf32x3"), in_layer)
        tl.store(into + PLACES[2 * n + 1] + o, tl.sum(dz, 0), o < WIDTHS[n + 1])
        if n > 0 or X_GRADIENT:
            w = tl.load(weights + place, in_layer, 0.0)
            dz = tl.dot(dz, w, input_precision="tf32x3")
        value = inputs
    if X_GRADIENT:
        i = tl.arange(0, PADDED[0])
        tl.store(dx + (model * events + e)[:, None] * WIDTHS[0] + i[None, :], dz, valid & (i < WIDTHS[0])[None, :])


class LinearChainFunction(torch.autograd.Function):
    """Linear layers in sequence. `weights` are weight and bias of each layer, in rows of one table; `buffers` are as
    many places for their gradients, in another table."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        activations: tuple[str, ...],
        buffers: Sequence[GradientBuffer | None],
        *weights: Tensor,
    ) -> Tensor:
        widths = (weights[0].shape[2], *(weight.shape[1] for weight in weights[::2]))
        models, events = len(weights[0]), x.shape[1]
        before = (0, *itertools.accumulate(widths[1:-1]))
        ctx.sizes = {
            "WIDTHS": widths, "PADDED": tuple(max(16, triton.next_power_of_2(width)) for width in widths),
            "PLACES": tuple(weight.storage_offset() for weight in weights),
            "KINDS": tuple(map(ACTIVATIONS.index, activations)),
            "BEFORE": before, "EVENTS": max(16, triton.next_power_of_2(events)),
        }  # fmt: skip
        hidden, y = x.new_empty(models, events * before[-1]), x.new_empty(models, events, widths[-1])
        table = _table(weights[0])
        chain_kernel[(models,)](x, table, hidden, y, events, x.stride(0), table.stride(0), **ctx.sizes, num_warps=WARPS)
        ctx.save_for_backward(x, table, hidden, y)
        ctx.buffers = buffers
        ctx.layouts = [(weight.shape, weight.stride(), weight.storage_offset()) for weight in weights]
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, table, hidden, y = ctx.saved_tensors
        models, events, x_gradient = len(table), x.shape[1], ctx.needs_input_grad[0]
        claimed = [buffer.claim() for buffer in ctx.buffers if buffer is not None]
        places = [place for place in claimed if place is not None and place.stride(0) == table.stride(0)]
        of_weights = _table(places[0]) if len(places) == len(ctx.layouts) else torch.empty_like(table)
        dx = x.new_empty(x.shape) if x_gradient else y
        tensors = (gradients[0].contiguous(), y, x, table, hidden, dx, of_weights)
        sizes = (events, x.stride(0), table.stride(0))
        chain_backward_kernel[(models,)](*tensors, *sizes, **ctx.sizes, X_GRADIENT=x_gradient, num_warps=WARPS)
        return dx if x_gradient else None, None, None, *(of_weights.as_strided(*layout) for layout in ctx.layouts)


def _table(part: Tensor) -> Tensor:
    """Return the table that a tensor is a part of: consecutive rows, from the first byte of its memory."""
    return part.detach().as_strided((len(part), part.stride(0)), (part.stride(0), 1), 0)


def supports(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Return whether the kernels can compute a chain: few events, narrow layers, all weights in rows of one table."""
    rows = x.ndim == 3 and x.stride(2) == 1 and x.stride(1) == x.shape[2] and x.shape[1] <= MAX_EVENTS
    tables = {(weight.untyped_storage().data_ptr(), weight.stride(0)) for weight in weights}
    plain = all(tensor.dtype == torch.float32 and tensor[0].is_contiguous() for tensor in (x, *weights))
    return rows and plain and len(tables) == 1 and max(max(weight.shape[1:]) for weight in weights) <= MAX_WIDTH
