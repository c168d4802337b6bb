"""One graph layer of both stacks as one torch operation with its gradient, for `torch.compile` and CUDA graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clew.recipes.particleflow.kernels import messages
from clew.recipes.particleflow.kernels.affinity import affinity, affinity_backward
from clew.recipes.particleflow.kernels.products import weight_gradient
from clew.recipes.particleflow.kernels.sorting import sort_by_hash

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
    """Return the output of a layer (stacks, rows, f), then the tensors that its gradient needs.

    Args:
        x: (stacks, rows, k).
        project: Weights of `GraphLayer`, in single precision, as are the following three.
        inner_bias: See `GraphLayer`.
        outer: See `GraphLayer`.
        gate_bias: See `GraphLayer`.
        book: Codebook (stacks, d, 16), of which `half` columns are used.
        fill: Elements in each bin; see `sorting`.
        first: The first bin of each event; see `sorting`.
        half: Half the number of hash codes.
    """
    size, distance = x.shape[1] // len(fill), outer.shape[-1]
    width = gate_bias.shape[-1]
    z = torch.bmm(x, project.to(x.dtype))
    inner = messages.inner_features(z, inner_bias, distance)
    apart = torch.bmm(inner, outer.to(x.dtype))
    index, square = sort_by_hash(apart, book.to(x.dtype), fill, first, size, half)
    near, norm = affinity(apart, square, index, fill, size)
    sent = messages.send_messages(z, index, norm, distance, width, size)
    arrived = torch.bmm(near, sent)
    result = messages.gate_messages(arrived, z, index, norm, gate_bias, distance + width)
    return result, z, inner, apart, square, index, norm, near, sent, arrived


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
    size, distance, width = rows // fill.shape[0], outer.shape[-1], gate_bias.shape[-1]
    bins = stacks * fill.shape[0]  # len() would fix the number for the compiler

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
def flow_layer_backward(
    dresult: Tensor,
    x: Tensor,
    project: Tensor,
    outer: Tensor,
    gate_bias: Tensor,
    fill: Tensor,
    saved: list[Tensor],
    needs_dx: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x (empty unless `needs_dx`), project, inner bias, outer and gate bias."""
    result, z, inner, apart, square, index, norm, near, sent, arrived = saved
    distance, width = outer.shape[-1], gate_bias.shape[-1]
    dz = torch.empty_like(z)
    through, along, dgate = messages.gate_messages_backward(
        dresult.contiguous(), result, arrived, z, index, norm, gate_bias, dz, distance + width
    )
    back = torch.bmm(near, through)
    degree = messages.send_messages_backward(back, sent, along, index, norm, dz, distance)
    dapart = affinity_backward(apart, square, index, fill, torch.bmm(through, sent.transpose(1, 2)), degree)
    dinner = torch.bmm(dapart, outer.to(x.dtype).transpose(1, 2))
    dbias = messages.inner_features_backward(dinner, inner, dz)
    dx = torch.bmm(dz, project.to(x.dtype).transpose(1, 2)) if needs_dx else x.new_empty(0)
    return dx, weight_gradient(x, dz, 8), dbias.unsqueeze(1), weight_gradient(inner, dapart), dgate.unsqueeze(1)


@flow_layer_backward.register_fake
def _(
    dresult: Tensor,
    x: Tensor,
    project: Tensor,
    outer: Tensor,
    gate_bias: Tensor,
    fill: Tensor,
    saved: list[Tensor],
    needs_dx: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    def like(*shape: int) -> Tensor:
        return x.new_empty(shape, dtype=torch.float32)

    dx = x.new_empty(x.shape) if needs_dx else x.new_empty(0)
    bias = like(x.shape[0], 1, outer.shape[-1])
    return dx, like(*project.shape), bias, like(*outer.shape), like(x.shape[0], 1, gate_bias.shape[-1])


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    x, project, _, outer, gate_bias, _, fill, *_ = inputs
    ctx.save_for_backward(x, project, outer, gate_bias, fill, *output)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, dresult: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, project, outer, gate_bias, fill, *saved = ctx.saved_tensors
    needs_dx = ctx.needs_input_grad[0]
    dx, *rest = flow_layer_backward(dresult, x, project, outer, gate_bias, fill, saved, needs_dx)
    dproject, dinner, douter, dgate = rest
    return dx if needs_dx else None, dproject, dinner, douter, dgate, None, None, None, None


flow_layer.register_autograd(_backward, setup_context=_save_for_backward)
