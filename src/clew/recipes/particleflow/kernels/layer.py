"""One graph layer of both stacks as one operation of torch, with its gradient: for `torch.compile` and CUDA graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clew.recipes.particleflow.kernels import gating
from clew.recipes.particleflow.kernels.nearness import nearness, pulled
from clew.recipes.particleflow.kernels.products import summed
from clew.recipes.particleflow.kernels.sorting import hashed

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.custom_op("clew::flow_layer", mutates_args=())
def flow_layer(
    x: Tensor,
    project: Tensor,
    inner_bias: Tensor,
    outer: Tensor,
    gate_bias: Tensor,
    book: Tensor,
    fill: Tensor,
    first: Tensor,
    half: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What a layer gives (stacks, rows, f), then what its gradient needs.

    `x` (stacks, rows, k); weights as those of `GraphLayer`, in single precision; `book` (stacks, d, 16), of which
    `half` columns count; `fill` and `first` as in `sorting`.
    """
    size, distance = x.shape[1] // len(fill), outer.shape[-1]
    width = gate_bias.shape[-1]
    z = torch.bmm(x, project.to(x.dtype))
    inner = gating.inner(z, inner_bias, distance)
    apart = torch.bmm(inner, outer.to(x.dtype))
    index, square = hashed(apart, book.to(x.dtype), fill, first, size, half)
    near, norm = nearness(apart, square, index, fill, size)
    sent = gating.send(z, index, norm, distance, width, size)
    arrived = torch.bmm(near, sent)
    made = gating.gate(arrived, z, index, norm, gate_bias, distance + width)
    return made, z, inner, apart, square, index, norm, near, sent, arrived


@flow_layer.register_fake
def _(
    x: Tensor,
    project: Tensor,
    inner_bias: Tensor,
    outer: Tensor,
    gate_bias: Tensor,
    book: Tensor,
    fill: Tensor,
    first: Tensor,
    half: int,
) -> Outputs:
    stacks, rows, _ = x.shape
    size, distance, width = rows // len(fill), outer.shape[-1], gate_bias.shape[-1]
    bins = stacks * len(fill)

    def like(*shape: int, dtype: torch.dtype = x.dtype) -> Tensor:
        return x.new_empty(shape, dtype=dtype)

    places = stacks * rows
    return (
        like(stacks, rows, width),
        like(stacks, rows, project.shape[-1]),
        like(stacks, rows, distance),
        like(stacks, rows, distance),
        like(places, dtype=torch.float32),
        like(places, dtype=torch.int32),
        like(places, dtype=torch.float32),
        like(bins, size, size),
        like(bins, size, width),
        like(bins, size, width),
    )


@torch.library.custom_op("clew::flow_layer_back", mutates_args=())
def flow_layer_back(
    dmade: Tensor,
    x: Tensor,
    project: Tensor,
    outer: Tensor,
    gate_bias: Tensor,
    fill: Tensor,
    saved: list[Tensor],
    wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x (empty unless `wanted`), project, inner bias, outer and gate bias."""
    made, z, inner, apart, square, index, norm, near, sent, arrived = saved
    distance, width = outer.shape[-1], gate_bias.shape[-1]
    dz = torch.empty_like(z)
    through, along, dgate = gating.gate_back(
        dmade.contiguous(), made, arrived, z, index, norm, gate_bias, dz, distance + width
    )
    back = torch.bmm(near, through)
    degree = gating.send_back(back, sent, along, index, norm, dz, distance)
    dapart = pulled(apart, square, index, fill, torch.bmm(through, sent.transpose(1, 2)), degree)
    dinner = torch.bmm(dapart, outer.to(x.dtype).transpose(1, 2))
    dbias = gating.inner_back(dinner, inner, dz)
    dx = torch.bmm(dz, project.to(x.dtype).transpose(1, 2)) if wanted else x.new_empty(0)
    return dx, summed(x, dz, 8), dbias.unsqueeze(1), summed(inner, dapart), dgate.unsqueeze(1)


@flow_layer_back.register_fake
def _(
    dmade: Tensor,
    x: Tensor,
    project: Tensor,
    outer: Tensor,
    gate_bias: Tensor,
    fill: Tensor,
    saved: list[Tensor],
    wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    def like(*shape: int) -> Tensor:
        return x.new_empty(shape, dtype=torch.float32)

    dx = x.new_empty(x.shape) if wanted else x.new_empty(0)
    bias = like(x.shape[0], 1, outer.shape[-1])
    return dx, like(*project.shape), bias, like(*outer.shape), like(x.shape[0], 1, gate_bias.shape[-1])


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    x, project, _, outer, gate_bias, _, fill, *_ = inputs
    ctx.save_for_backward(x, project, outer, gate_bias, fill, *output)
    ctx.mark_non_differentiable(*output[1:])


def _back(ctx: Any, dmade: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, project, outer, gate_bias, fill, *saved = ctx.saved_tensors
    wanted = ctx.needs_input_grad[0]
    dx, *rest = flow_layer_back(dmade, x, project, outer, gate_bias, fill, saved, wanted)
    dproject, dinner, douter, dgate = rest
    return dx if wanted else None, dproject, dinner, douter, dgate, None, None, None, None


flow_layer.register_autograd(_back, setup_context=_remember)
