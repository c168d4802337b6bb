"""A block of the network as one operation: convolution 5x5 'same', maximum of 5x5, ELU.

ELU rises everywhere, so the maximum is taken first, and only one of 25 positions is ever looked at again: `winner` says
which, and the backward touches nothing else. Images are (events, rows, columns, channels). Most of an image is
background, the same numbers everywhere: a cell (5x5 positions, one number a channel after pooling) that sees nothing
else gets `fill`, which is worked out once and differentiated by torch; the others are *active* and listed. `pixels` is
the first block, on lists of pixels with zero all around, `cells` any later one. Each has one contract and three makers
(`kernels`), chosen by where the tensors are.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as f

from clew.recipes.lartpc.kernels import portable

POOL = 5
"""Rows and columns of a cell, and of a convolution."""


def maker(tensor: Tensor) -> ModuleType:
    """Who computes with a tensor: by the device it is on, and on CUDA by its precision."""
    if tensor.device.type == "cpu":
        from clew.recipes.lartpc.kernels import processor

        return processor
    asked = os.environ.get("CLEW_TRITON") == "1"  # until they have been measured on a device
    if asked and tensor.device.type == "cuda" and tensor.dtype in (torch.bfloat16, torch.float16):
        from clew.recipes.lartpc.kernels import device

        return device
    return portable


def background(before: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    """What a block gives where it sees nothing but background: `before` in all channels, or zero."""
    if before is None:
        return f.elu(bias)
    return f.elu(bias + weight.sum(dim=(2, 3)) @ before)


@torch.library.custom_op("clew_lartpc::pixels", mutates_args=())
def pixels(
    index: Tensor,
    charge: Tensor,
    offsets: Tensor,
    fill: Tensor,
    weight: Tensor,
    bias: Tensor,
    height: int,
    width: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The first block.

    Args:
        index: int32 (pixels,), row * width + column, once each in an event.
        charge: (pixels,), what is there.
        offsets: int64 (events + 1,), where each event's pixels begin.
        fill: (channels,), the result where a cell sees no pixel: `background`.
        weight: (channels, 1, 5, 5).
        bias: (channels,).
        height: rows of an image.
        width: its columns.

    Returns:
        The image of cells (events, height // 5, width // 5, channels), the winner of each of its numbers
        (uint8, row * 5 + column within the cell), and which cells are active (bool, without channels).
    """
    found: tuple[Tensor, Tensor, Tensor] = maker(charge).pixels(
        index, charge, offsets, fill, weight, bias, height, width
    )
    return found


@torch.library.custom_op("clew_lartpc::pixels_backward", mutates_args=())
def pixels_backward(
    gradient: Tensor,
    index: Tensor,
    charge: Tensor,
    offsets: Tensor,
    y: Tensor,
    winner: Tensor,
    active: Tensor,
    height: int,
    width: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of fill, weight and bias."""
    found: tuple[Tensor, Tensor, Tensor] = maker(charge).pixels_backward(
        gradient, index, charge, offsets, y, winner, active, height, width
    )
    return found


@torch.library.custom_op("clew_lartpc::cells", mutates_args=())
def cells(
    x: Tensor, active: Tensor, before: Tensor, fill: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A later block.

    Args:
        x: (events, rows, columns, channels); `before` wherever it is not active.
        active: bool (events, rows, columns).
        before: (channels,), the background of x: a maker may hand the gradient of what is not active to either.
        fill: (outputs,), the result where a cell sees nothing active and lies within the image: `background`.
        weight: (outputs, channels, 5, 5).
        bias: (outputs,).

    Returns:
        As `pixels` does. Cells that see beyond the image are active too: what lies there is zero, not background.
    """
    found: tuple[Tensor, Tensor, Tensor] = maker(x).cells(x, active, before, fill, weight, bias)
    return found


@torch.library.custom_op("clew_lartpc::cells_backward", mutates_args=())
def cells_backward(
    gradient: Tensor, x: Tensor, seen: Tensor, y: Tensor, winner: Tensor, active: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, before, fill, weight and bias; `seen` is what is active in x, `active` what is in y."""
    found: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = maker(x).cells_backward(
        gradient, x, seen, y, winner, active, weight
    )
    return found


def _shaped(like: Tensor, events: Any, height: Any, width: Any, channels: Any) -> tuple[Tensor, Tensor, Tensor]:
    size = (events, height // POOL, width // POOL)
    padded = -(-channels // 16) * 16 if like.device.type == "cuda" else channels
    return (
        like.new_empty((*size, padded))[..., :channels],
        like.new_empty((*size, channels), dtype=torch.uint8),
        like.new_empty(size, dtype=torch.bool),
    )


@pixels.register_fake
def _(
    index: Tensor, charge: Tensor, offsets: Tensor, fill: Tensor, weight: Tensor, bias: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _shaped(charge, offsets.shape[0] - 1, height, width, weight.shape[0])


@pixels_backward.register_fake
def _(
    gradient: Tensor,
    index: Tensor,
    charge: Tensor,
    offsets: Tensor,
    y: Tensor,
    winner: Tensor,
    active: Tensor,
    height: int,
    width: int,
) -> tuple[Tensor, Tensor, Tensor]:
    channels = y.shape[3]
    like = gradient.new_empty(0, dtype=torch.promote_types(gradient.dtype, torch.float32))
    return like.new_empty(channels), like.new_empty((channels, 1, 5, 5)), like.new_empty(channels)


@cells.register_fake
def _(
    x: Tensor, active: Tensor, before: Tensor, fill: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _shaped(x, x.shape[0], x.shape[1], x.shape[2], weight.shape[0])


@cells_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, seen: Tensor, y: Tensor, winner: Tensor, active: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    outputs, channels = weight.shape[:2]
    dx = x.new_empty(x.shape)
    return (
        dx,
        weight.new_empty(channels),
        weight.new_empty(outputs),
        torch.empty_like(weight),
        weight.new_empty(outputs),
    )


def _keep_pixels(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    index, charge, offsets, *_, height, width = inputs
    ctx.save_for_backward(index, charge, offsets, *output)
    ctx.size = (height, width)


def _pixels_gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    fill, weight, bias = pixels_backward(gradient.contiguous(), *ctx.saved_tensors, *ctx.size)
    return None, None, None, fill, weight, bias, None, None


def _keep_cells(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, active, _, _, weight, _ = inputs
    ctx.save_for_backward(x, active, *output, weight)


def _cells_gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, before, fill, weight, bias = cells_backward(gradient.contiguous(), *ctx.saved_tensors)
    return x, None, before, fill, weight, bias


pixels.register_autograd(_pixels_gradients, setup_context=_keep_pixels)
cells.register_autograd(_cells_gradients, setup_context=_keep_cells)
