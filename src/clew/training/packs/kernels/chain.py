"""Linear layers one after the other: a program does those of one model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clew.training.packs.kernels.activation import KINDS, active, slope
from clew.training.packs.stacked_weights import Lent

WIDEST = 64
"""Inputs and outputs of a layer."""
EVENTS = 64
"""Most in a batch."""
WARPS = 4
"""Of a program. With eight (Triton 3.6, H200) the way back was slower, and on the way there CUDA told of an illegal
access, though no address here is outside."""


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
        z = active(z, KINDS[n])
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
        dz = slope(dz, value, KINDS[n])
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
    def backward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        x, table, hidden, y = ctx.saved_tensors
        models, events, wanted = len(table), x.shape[1], ctx.needs_input_grad[0]
        lent = [each.take() for each in ctx.lent if each is not None]
        places = [each for each in lent if each is not None and each.stride(0) == table.stride(0)]
        slopes = _table(places[0]) if len(places) == len(ctx.like) else torch.empty_like(table)
        dx = x.new_empty(x.shape) if wanted else y
        tensors = (given[0].contiguous(), y, x, table, hidden, dx, slopes, events, x.stride(0), table.stride(0))
        _chain_back[(models,)](*tensors, **ctx.sizes, WANTED=wanted, num_warps=WARPS)
        return dx if wanted else None, None, None, *(slopes.as_strided(*each) for each in ctx.like)


def _table(part: Tensor) -> Tensor:
    """The table that something is a part of: rows one after the other, from the first byte on."""
    return part.detach().as_strided((len(part), part.stride(0)), (part.stride(0), 1), 0)


def fits(x: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether layers can be done as a chain: few events, narrow layers, all weights and biases in rows of one table."""
    rows = x.ndim == 3 and x.stride(2) == 1 and x.stride(1) == x.shape[2] and x.shape[1] <= EVENTS
    tables = {(each.untyped_storage().data_ptr(), each.stride(0)) for each in given}
    plain = all(each.dtype == torch.float32 and each[0].is_contiguous() for each in (x, *given))
    return rows and plain and len(tables) == 1 and max(max(each.shape[1:]) for each in given) <= WIDEST
