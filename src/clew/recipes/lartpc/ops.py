"""A block of the network as one operation: 5x5 convolution with padding, 5x5 maximum pooling, ELU.

ELU is monotonic, so the maximum is taken before it. The gradient then concerns only one of 25 positions, the `winner`.
Images are (events, rows, columns, channels).

Most of an image is background, with the same value everywhere. A cell is a square of 5x5 positions, which pooling
reduces to one value per channel. A cell whose inputs are all background gets `fill`, which is computed once and
differentiated by torch. All other cells are *active*, and only these are computed.

`pixels` is the first block, on lists of pixels. `cells` is a later block on lists of active cells, and `dense_block` a
later block on dense images. Each operation has several implementations in `kernels`. The device and precision of the
tensors decide which one is used.
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
PADDED_CHANNELS = 16
"""Channels per position of the first image in the memory of a GPU."""


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def kernel_module(tensor: Tensor) -> ModuleType:
    """Return the module of `kernels` for a tensor, from its device and, on CUDA, its precision."""
    if tensor.device.type == "cpu":
        from clew.recipes.lartpc.kernels import cpu

        return cpu
    if tensor.device.type == "cuda" and tensor.dtype == torch.bfloat16 and _has_triton():
        from clew.recipes.lartpc.kernels import gpu

        return gpu
    return portable


def background(before: Tensor | None, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the output of a block where all its inputs are background: `before` (channels,), or zero."""
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
    """Compute the first block.

    Cells that are not active get `fill`. Their gradient may be ignored: the result is only used by `cells`, which adds
    that gradient to the one of `before`.

    Args:
        index: int32 (pixels,), row * width + column, without duplicates in an event. Empty if `charge` holds dense
            images, one after the other: then all cells are active.
        charge: (pixels,), the charge of each pixel.
        offsets: int64 (events + 1,), where the pixels of each event start.
        fill: (channels,), the result of a cell without pixels: `background`.
        weight: (channels, 1, 5, 5).
        bias: (channels,).
        height: Rows of an image.
        width: Columns of an image.

    Returns:
        The image of cells (events, height // 5, width // 5, channels), the winner of each of its values
        (uint8, row * 5 + column within the cell), which cells are active (bool, without channels), and the dense image,
        if the implementation needs it for the gradient (else empty).
    """
    result: tuple[Tensor, Tensor, Tensor, Tensor] = kernel_module(charge).pixels(
        index, charge, offsets, fill, weight, bias, height, width
    )
    return result


@torch.library.custom_op("clew_lartpc::pixels_backward", mutates_args=())
def pixels_backward(
    gradient: Tensor,
    index: Tensor,
    charge: Tensor,
    offsets: Tensor,
    y: Tensor,
    winner: Tensor,
    active: Tensor,
    image: Tensor,
    height: int,
    width: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of fill, weight and bias."""
    gradients: tuple[Tensor, Tensor, Tensor] = kernel_module(charge).pixels_backward(
        gradient, index, charge, offsets, y, winner, active, image, height, width
    )
    return gradients


@torch.library.custom_op("clew_lartpc::cells", mutates_args=())
def cells(
    x: Tensor, active: Tensor, before: Tensor, fill: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a later block on lists of active cells.

    Args:
        x: (events, rows, columns, channels), equal to `before` where it is not active.
        active: bool (events, rows, columns).
        before: (channels,), the background of x. An implementation may add the gradient of inactive positions either to
            x or to `before`.
        fill: (outputs,), the result of a cell inside the image whose inputs are all background: `background`.
        weight: (outputs, channels, 5, 5).
        bias: (outputs,).

    Returns:
        The image of cells, the winners and the active cells, as of `pixels`. Cells whose inputs extend beyond the image
        are active too, because the padding is zero and not background.
    """
    result: tuple[Tensor, Tensor, Tensor] = kernel_module(x).cells(x, active, before, fill, weight, bias)
    return result


@torch.library.custom_op("clew_lartpc::cells_backward", mutates_args=())
def cells_backward(
    gradient: Tensor, x: Tensor, x_active: Tensor, y: Tensor, winner: Tensor, active: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, before, fill, weight and bias.

    `x_active` are the active positions of x, `active` those of y.
    """
    gradients: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = kernel_module(x).cells_backward(
        gradient, x, x_active, y, winner, active, weight
    )
    return gradients


@torch.library.custom_op("clew_lartpc::dense_block", mutates_args=())
def dense_block(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Compute a later block on dense images: the image of cells and the winners, as of `cells`."""
    result: tuple[Tensor, Tensor] = kernel_module(x).dense_block(x, weight, bias)
    return result


@torch.library.custom_op("clew_lartpc::dense_block_backward", mutates_args=())
def dense_block_backward(
    gradient: Tensor, x: Tensor, y: Tensor, winner: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias."""
    gradients: tuple[Tensor, Tensor, Tensor] = kernel_module(x).dense_block_backward(gradient, x, y, winner, weight)
    return gradients


def uses_cell_lists(x: Tensor, weight: Tensor) -> bool:
    """Return whether to compute a block by `cells` instead of `dense_block`: not on GPUs with many channels."""
    supports = getattr(kernel_module(x), "supports_cell_lists", None)
    return supports is None or bool(supports(weight))


def _empty_outputs(
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
    image_out = charge.new_empty(events * height * width if image and index.shape[0] else 0)
    return *_empty_outputs(charge, events, height, width, weight.shape[0], PADDED_CHANNELS), image_out


@pixels_backward.register_fake
def _(
    gradient: Tensor,
    index: Tensor,
    charge: Tensor,
    offsets: Tensor,
    y: Tensor,
    winner: Tensor,
    active: Tensor,
    image: Tensor,
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
    return _empty_outputs(x, x.shape[0], x.shape[1], x.shape[2], weight.shape[0])


@cells_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, x_active: Tensor, y: Tensor, winner: Tensor, active: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    outputs, channels = weight.shape[:2]
    row = PADDED_CHANNELS if x.is_cuda and x.dtype == torch.bfloat16 and channels <= PADDED_CHANNELS else channels
    dx = x.new_empty((*x.shape[:3], row))[..., :channels]
    return (
        dx,
        weight.new_empty(channels),
        weight.new_empty(outputs),
        torch.empty_like(weight),
        weight.new_empty(outputs),
    )


@dense_block.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return _empty_outputs(x, x.shape[0], x.shape[1], x.shape[2], weight.shape[0])[:2]


@dense_block_backward.register_fake
def _(gradient: Tensor, x: Tensor, y: Tensor, winner: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), weight.new_empty(weight.shape[0])


def _save_pixels(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    index, charge, offsets, *_, height, width = inputs
    ctx.set_materialize_grads(False)  # otherwise torch allocates zeros for all outputs except y
    ctx.save_for_backward(index, charge, offsets, *output)
    ctx.size = (height, width)


def _pixels_gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    fill, weight, bias = pixels_backward(gradient, *ctx.saved_tensors, *ctx.size)
    return None, None, None, fill, weight, bias, None, None


def _save_cells(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, active, _, _, weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, active, *output, weight)


def _cells_gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, before, fill, weight, bias = cells_backward(gradient, *ctx.saved_tensors)
    return x, None, before, fill, weight, bias


def _save_dense_block(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, *output, weight)


def _dense_block_gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = dense_block_backward(gradient, *ctx.saved_tensors)
    return gradients


pixels.register_autograd(_pixels_gradients, setup_context=_save_pixels)
cells.register_autograd(_cells_gradients, setup_context=_save_cells)
dense_block.register_autograd(_dense_block_gradients, setup_context=_save_dense_block)
