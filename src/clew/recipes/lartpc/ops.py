"""A block of the network as one operation: convolution 5x5 'same', maximum of 5x5, ELU.

ELU rises everywhere, so the maximum is taken first, and only one of 25 positions is ever looked at again: `winner` says
which, and the backward touches nothing else. Images are (events, rows, columns, channels). Most of an image is
background, the same numbers everywhere: a cell (5x5 positions, one number a channel after pooling) that sees nothing
else gets `fill`, which is worked out once and differentiated by torch; the others are *active* and listed. `pixels` is
the first block, on lists of pixels with zero all around, `cells` any later one. Each has one contract and three makers
(`kernels`), chosen by where the tensors are.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as f

from clew.recipes.lartpc.kernels import portable

POOL = 5
"""Rows and columns of a cell, and of a convolution."""
WIDE = 16
"""Channels of a row of the first image in memory, on a device."""


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def maker(tensor: Tensor) -> ModuleType:
    """Who computes with a tensor: by the device it is on, and on CUDA by its precision."""
    if tensor.device.type == "cpu":
        from clew.recipes.lartpc.kernels import processor

        return processor
    if tensor.device.type == "cuda" and tensor.dtype == torch.bfloat16 and _has_triton():
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first block.

    Where nothing is active the result is `fill`, and its only reader is `cells`, which gives the gradient of that to
    `before`: a maker may look for gradients at active cells alone.

    Args:
        index: int32 (pixels,), row * width + column, once each in an event. Empty if `charge` is whole images, one
            after the other: then all cells are active.
        charge: (pixels,), what is there.
        offsets: int64 (events + 1,), where each event's pixels begin.
        fill: (channels,), the result where a cell sees no pixel: `background`.
        weight: (channels, 1, 5, 5).
        bias: (channels,).
        height: rows of an image.
        width: its columns.

    Returns:
        The image of cells (events, height // 5, width // 5, channels), the winner of each of its numbers
        (uint8, row * 5 + column within the cell), which cells are active (bool, without channels), and what its maker
        wants to see again (nothing, or the image).
    """
    found: tuple[Tensor, Tensor, Tensor, Tensor] = maker(charge).pixels(
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
    kept: Tensor,
    height: int,
    width: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of fill, weight and bias."""
    found: tuple[Tensor, Tensor, Tensor] = maker(charge).pixels_backward(
        gradient, index, charge, offsets, y, winner, active, kept, height, width
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


@torch.library.custom_op("clew_lartpc::whole", mutates_args=())
def whole(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A later block without lists: the image of cells, and the winners, as `cells` gives them."""
    found: tuple[Tensor, Tensor] = maker(x).whole(x, weight, bias)
    return found


@torch.library.custom_op("clew_lartpc::whole_backward", mutates_args=())
def whole_backward(
    gradient: Tensor, x: Tensor, y: Tensor, winner: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias."""
    found: tuple[Tensor, Tensor, Tensor] = maker(x).whole_backward(gradient, x, y, winner, weight)
    return found


def listed(x: Tensor, weight: Tensor) -> bool:
    """Whether a block is better done by `cells` than `whole`: always, but on a device with many channels."""
    few = getattr(maker(x), "few", None)
    return few is None or bool(few(weight))


def _shaped(
    like: Tensor, events: Any, height: Any, width: Any, channels: Any, padded: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    size = (events, height // POOL, width // POOL)
    row = padded if padded and like.is_cuda and like.dtype == torch.bfloat16 else channels
    return (
        like.new_empty((*size, row))[..., :channels],
        like.new_empty((*size, row), dtype=torch.uint8)[..., :channels],
        like.new_empty(size, dtype=torch.bool),
    )


@pixels.register_fake
def _(
    index: Tensor, charge: Tensor, offsets: Tensor, fill: Tensor, weight: Tensor, bias: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    events = offsets.shape[0] - 1
    image = charge.is_cuda and charge.dtype == torch.bfloat16
    kept = charge.new_empty(events * height * width if image and index.shape[0] else 0)
    return *_shaped(charge, events, height, width, weight.shape[0], WIDE), kept


@pixels_backward.register_fake
def _(
    gradient: Tensor,
    index: Tensor,
    charge: Tensor,
    offsets: Tensor,
    y: Tensor,
    winner: Tensor,
    active: Tensor,
    kept: Tensor,
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
    row = WIDE if x.is_cuda and x.dtype == torch.bfloat16 and channels <= WIDE else channels
    dx = x.new_empty((*x.shape[:3], row))[..., :channels]
    return (
        dx,
        weight.new_empty(channels),
        weight.new_empty(outputs),
        torch.empty_like(weight),
        weight.new_empty(outputs),
    )


@whole.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return _shaped(x, x.shape[0], x.shape[1], x.shape[2], weight.shape[0])[:2]


@whole_backward.register_fake
def _(gradient: Tensor, x: Tensor, y: Tensor, winner: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), weight.new_empty(weight.shape[0])


def _keep_pixels(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    index, charge, offsets, *_, height, width = inputs
    ctx.set_materialize_grads(False)  # else torch makes zeros for everything that is not y
    ctx.save_for_backward(index, charge, offsets, *output)
    ctx.size = (height, width)


def _pixels_gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    fill, weight, bias = pixels_backward(gradient, *ctx.saved_tensors, *ctx.size)
    return None, None, None, fill, weight, bias, None, None


def _keep_cells(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, active, _, _, weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, active, *output, weight)


def _cells_gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, before, fill, weight, bias = cells_backward(gradient, *ctx.saved_tensors)
    return x, None, before, fill, weight, bias


def _keep_whole(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, *output, weight)


def _whole_gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = whole_backward(gradient, *ctx.saved_tensors)
    return found


pixels.register_autograd(_pixels_gradients, setup_context=_keep_pixels)
cells.register_autograd(_cells_gradients, setup_context=_keep_cells)
whole.register_autograd(_whole_gradients, setup_context=_keep_whole)
