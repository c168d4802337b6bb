"""The blocks on CUDA in bf16 with sums in float32: lists of active cells for few channels, torch for many.

The products of the first two blocks are written in CUDA C++ (`cuda/`, `nvrtc.py`): tensor cores fed from registers, on
lists of cells. The later blocks have little background left, and their matrices suit cuDNN. Bias, ELU and pooling
around its convolution take one pass in each direction. Kernels that only move data are written in Triton. All sizes are
known before the data, and lists are counted on the device, so a complete training step can be captured in a CUDA graph.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as f

from clew.recipes.lartpc.kernels import cell_lists, elu_backward, pooling
from clew.recipes.lartpc.kernels.nvrtc import load_kernel
from clew.recipes.lartpc.kernels.portable import border_cells, is_dense

BLOCK = 1024
CELLS = 64
"""Cells that a Triton program processes at a time."""
PADDED_CHANNELS = 16
"""Channels per position of the first image, used or not: a memory sector, and the width of a tensor-core operand."""
MAX_OUTPUTS = 64
"""Maximum number of outputs of a block on lists of cells."""
POSITIONS = 25


@cache
def _multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _grid(numbers: int) -> tuple[int]:
    return (max(1, triton.cdiv(numbers, BLOCK)),)


def _list_active(active: Tensor) -> tuple[Tensor, Tensor]:
    """Return the list of active cells, and their number. List entries after that number are undefined."""
    flat = active.contiguous().view(torch.uint8).view(-1)
    listed = torch.empty(flat.numel(), dtype=torch.int32, device=flat.device)
    count = torch.zeros(1, dtype=torch.int32, device=flat.device)
    cell_lists.list_active[_grid(flat.numel())](flat, listed, count, flat.numel(), BLOCK)
    return listed, count


def _squares_with_active(active: Tensor, rows: int, columns: int, *, side: int, begin: int, edges: bool) -> Tensor:
    """See `cell_lists.squares_with_active`."""
    events, height, width = active.shape
    result = torch.empty((events, rows, columns), dtype=torch.bool, device=active.device)
    sizes = (result.numel(), height, width, rows, columns, int(edges))
    active_bytes, result_bytes = active.view(torch.uint8), result.view(torch.uint8)
    grid = (triton.cdiv(result.numel(), 128),)
    cell_lists.squares_with_active[grid](active_bytes, result_bytes, *sizes, SIDE=side, BEGIN=begin, BLOCK=128)
    return result


def _background_image(like: Tensor, fill: Tensor, shape: tuple[int, ...], channels: int) -> Tensor:
    """Return an image of the background. Channels beyond those of `fill` are zero."""
    y = like.new_empty((*shape, channels))
    cell_lists.fill_background[_grid(y.numel())](y, fill.detach(), y.numel(), fill.numel(), channels, BLOCK)
    return y


def _pad_channels(image: Tensor) -> Tensor:
    """Return the image with 16 channels per position, without a copy if its memory already has them."""
    if (
        image.stride(2) == PADDED_CHANNELS
        and image.stride(3) == 1
        and image.stride(1) == PADDED_CHANNELS * image.shape[2]
    ):
        return image
    return f.pad(image, (0, PADDED_CHANNELS - image.shape[3])).contiguous()


@cache
def _first_weight_order(outputs: int, device: torch.device) -> Tensor:
    """Return the indices of the values of every lane in weights (outputs, 1, 5, 5) followed by a zero; see first.cu."""
    ky, px, lane, half, e = torch.meshgrid(*map(torch.arange, (5, 5, 32, 2, 2)), indexing="ij")
    output, kx = lane // 4 + 8 * half, 2 * (lane % 4) + e - torch.where(px < 4, px, 0)
    valid = (kx >= 0) & (kx < 5) & (output < outputs)
    return torch.where(valid, output * 25 + ky * 5 + kx, outputs * 25).to(device, torch.int32)


@cache
def _second_weight_order(outputs: int, channels: int, transposed: bool, device: torch.device) -> Tensor:
    """Return the same for weights (outputs, channels, 5, 5), see second.cu; if `transposed`, rows are channels."""
    sizes = (outputs // 16, 25, 32, 4, 2)
    group, tap, lane, part, e = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
    row, k = lane // 4 + 8 * (part % 2), 4 * (lane % 4) + 2 * (part // 2) + e
    output, channel = (16 * group + k, row) if transposed else (16 * group + row, k)
    valid = channel < channels
    return torch.where(valid, (output * channels + channel) * 25 + tap, outputs * channels * 25).to(device, torch.int32)


def _arrange_weights(weight: Tensor, order: Tensor) -> Tensor:
    arranged = torch.empty(order.numel(), dtype=torch.bfloat16, device=weight.device)
    values = weight.detach().contiguous()
    cell_lists.arrange[_grid(order.numel())](values, order, arranged, order.numel(), values.numel(), BLOCK)
    return arranged


def _dense_images(index: Tensor, charge: Tensor, offsets: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return dense images, and which cells have a pixel in their window. Pixels after the last offset are ignored."""
    events = offsets.numel() - 1
    if is_dense(index, charge):
        return charge, torch.ones((events, height // 5, width // 5), dtype=torch.bool, device=charge.device)
    image = charge.new_zeros(events * height * width)
    active = torch.zeros((events, height // 5, width // 5), dtype=torch.bool, device=charge.device)
    grid = (triton.cdiv(16 * _multiprocessors(charge.device), events), events)
    cell_lists.scatter[grid](index, charge, offsets, image, active.view(torch.uint8), height, width, BLOCK)
    return image, active


def pixels(
    index: Tensor, charge: Tensor, offsets: Tensor, fill: Tensor, weight: Tensor, bias: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `ops.pixels`. Supports at most 16 outputs, and returns the image for the gradient."""
    device, outputs = charge.device, weight.shape[0]
    image, active = _dense_images(index, charge, offsets, height, width)
    y = _background_image(charge, fill, active.shape, PADDED_CHANNELS)
    winner = torch.empty_like(y, dtype=torch.uint8)
    taps = _arrange_weights(weight, _first_weight_order(outputs, device))
    arguments = [image, *_list_active(active), taps, bias.detach(), y, winner, height, width, outputs]
    load_kernel("first", "first_forward", device)((3 * _multiprocessors(device), 1, 1), (128, 1, 1), arguments)
    saved = charge.new_empty(0) if image is charge else image
    return y[..., :outputs], winner[..., :outputs], active, saved


def pixels_backward(
    gradient: Tensor,
    index: Tensor,
    charge: Tensor,
    offsets: Tensor,
    y: Tensor,
    winner: Tensor,
    active: Tensor,
    saved: Tensor,
    height: int,
    width: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `ops.pixels_backward`. Inactive cells are ignored, since `cells_backward` gives them no gradient."""
    device, outputs = charge.device, y.shape[3]
    taps, total, idle = (torch.zeros((outputs, *more), device=device) for more in ((1, 5, 5), (), ()))
    image = charge if is_dense(index, charge) else saved
    arguments = [
        image,
        *_list_active(active),
        _pad_channels(gradient),
        _pad_channels(y),
        _pad_channels(winner),
        taps,
        total,
        height,
        width,
        outputs,
    ]
    load_kernel("first", "first_learn", device)((2 * _multiprocessors(device), 1, 1), (128, 1, 1), arguments)
    return idle, taps, total


def supports_cell_lists(weight: Tensor) -> bool:
    """Return whether a block can use lists of cells; other blocks use dense images."""
    outputs, channels = weight.shape[:2]
    return channels <= PADDED_CHANNELS and outputs % 16 == 0 and outputs <= MAX_OUTPUTS


def cells(
    x: Tensor, active: Tensor, before: Tensor, fill: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `ops.cells`."""
    device, (height, width), (outputs, channels) = x.device, x.shape[1:3], weight.shape[:2]
    y_active = _squares_with_active(active, height // 5, width // 5, side=9, begin=-2, edges=True)
    y = _background_image(x, fill, y_active.shape, outputs)
    winner = torch.empty_like(y, dtype=torch.uint8)
    taps = _arrange_weights(weight, _second_weight_order(outputs, channels, False, device))
    arguments = [_pad_channels(x), *_list_active(y_active), taps, bias.detach(), y, winner, height, width, outputs]
    load_kernel("second", "second_forward", device)(
        (2 * _multiprocessors(device), 1, 1), (2 * outputs, 1, 1), arguments
    )
    return y, winner, y_active


def cells_backward(
    gradient: Tensor, x: Tensor, x_active: Tensor, y: Tensor, winner: Tensor, active: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See `ops.cells_backward`. The gradient of inactive positions of x is added to that of `before`."""
    device, (height, width), (outputs, channels) = x.device, x.shape[1:3], weight.shape[:2]
    inner, constant, total = _elu_backward(gradient.contiguous(), y, active)
    taps, arrived = (
        torch.zeros(size, device=device) for size in (POSITIONS * outputs * PADDED_CHANNELS, PADDED_CHANNELS)
    )
    shared_bytes, arguments = (
        4 * 16 * 81 * 16,
        [_pad_channels(x), *_list_active(active), inner, winner, taps, height, width, outputs],
    )
    run = load_kernel("second", "second_learn", device, shared_bytes)
    run((_multiprocessors(device), 1, 1), (4 * outputs, 1, 1), arguments, shared_mem=shared_bytes)
    dx = x.new_empty((*x.shape[:3], PADDED_CHANNELS))
    squares = _squares_with_active(x_active, -(-height // 5), -(-width // 5), side=5, begin=0, edges=False)
    turned = _arrange_weights(weight, _second_weight_order(outputs, channels, True, device))
    shared_bytes = outputs // 16 * POSITIONS * 32 * 16
    arguments = [inner, winner, x_active, *_list_active(squares), turned, dx, arrived, height, width, outputs]
    run = load_kernel("second", "second_return", device, shared_bytes)
    run((2 * _multiprocessors(device), 1, 1), (128, 1, 1), arguments, shared_mem=shared_bytes)
    before = _total_input_gradient(inner, winner, total, weight, height, width) - arrived[:channels]
    dweight = taps.view(5, 5, outputs, PADDED_CHANNELS)[..., :channels].permute(2, 3, 0, 1)
    return dx[..., :channels], before, constant, dweight.contiguous(), total


def _elu_backward(gradient: Tensor, y: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient before ELU (0 in inactive cells), the sum of the incoming gradient over inactive cells, and
    the sum of the first over active cells."""
    channels = y.shape[3]
    padded = max(16, triton.next_power_of_2(channels))
    inner, idle, passed = torch.empty_like(gradient), *(torch.zeros(channels, device=y.device) for _ in range(2))
    grid, sizes = (4 * _multiprocessors(y.device),), (active.numel(), channels, padded, CELLS)
    elu_backward.elu_backward[grid](gradient, y, active.view(torch.uint8), inner, idle, passed, *sizes)
    return inner, idle, passed


@cache
def _border_cells(height: int, width: int, device: torch.device) -> Tensor:
    """Return the cells of an image whose windows extend beyond it."""
    return border_cells(height, width, device).view(-1).nonzero().view(-1).to(torch.int32)


@cache
def _taps_inside(device: torch.device) -> Tensor:
    """Return whether a tap lies in the image (25 taps, 25 kinds), by the kinds of `sum_border_gradients`."""
    k, kind = torch.arange(5).view(5, 1), torch.arange(5)
    along = (k >= 2 - kind) & (k <= 6 - kind)
    return torch.einsum("yk,xl->yxkl", along.float(), along.float()).reshape(25, 25).to(device)


def _total_input_gradient(
    inner: Tensor, winner: Tensor, total: Tensor, weight: Tensor, height: int, width: int
) -> Tensor:
    """Return the sum of the gradient of x over all positions."""
    events, rows, columns, outputs = inner.shape
    border, padded = _border_cells(height, width, inner.device), max(16, triton.next_power_of_2(outputs))
    kinds = torch.zeros((POSITIONS, padded), dtype=torch.float32, device=inner.device)
    number = events * border.numel()
    sizes = (number, border.numel(), rows, columns, height, width, outputs, padded, 32)
    elu_backward.sum_border_gradients[(triton.cdiv(number, 32),)](inner, winner, border, kinds, *sizes)
    kinds = kinds[:, :outputs]
    kinds[12] += total - kinds.sum(dim=0)
    within = weight.detach().to(inner.dtype).float().flatten(2) @ _taps_inside(inner.device)
    return torch.einsum("ko,ock->c", kinds, within)


def dense_block(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """See `ops.dense_block`."""
    outputs, (events, height, width) = weight.shape[0], x.shape[:3]
    weight_half = weight.detach().to(x.dtype, memory_format=torch.channels_last)
    with _cudnn_benchmark():
        z = f.conv2d(x.permute(0, 3, 1, 2), weight_half, padding=2).permute(0, 2, 3, 1).contiguous()
    size = (events, height // 5, width // 5, outputs)
    y, winner = (x.new_empty(size, dtype=kind) for kind in (x.dtype, torch.uint8))
    run = pooling.pool[_in_pieces(y)]
    run(z, bias.detach(), y, winner, *_sizes(y, height, width), WIDE=MAX_OUTPUTS, CELLS=8)
    return y, winner


def dense_block_backward(
    gradient: Tensor, x: Tensor, y: Tensor, winner: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `ops.dense_block_backward`."""
    (events, height, width), (rows, columns, outputs) = x.shape[:3], y.shape[1:]
    dz, total = x.new_empty((events, height, width, outputs)), torch.zeros(outputs, device=x.device)
    dz[:, 5 * rows :] = 0
    dz[:, :, 5 * columns :] = 0
    run = pooling.unpool[_in_pieces(y)]
    run(gradient.contiguous(), y, winner, dz, total, *_sizes(y, height, width), WIDE=MAX_OUTPUTS, CELLS=8)
    weight_half = weight.detach().to(x.dtype, memory_format=torch.channels_last)
    with _cudnn_benchmark():
        dx, dweight, _ = torch.ops.aten.convolution_backward(
            dz.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), weight_half, None,
            [1, 1], [2, 2], [1, 1], False, [0, 0], 1, [True, True, False],
        )  # fmt: skip
    return dx.permute(0, 2, 3, 1).contiguous(), dweight.to(weight.dtype), total


def _cudnn_benchmark() -> AbstractContextManager[None]:
    """Let cuDNN benchmark its algorithms at the first call of each size, and use the fastest."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=True, benchmark_limit=None, deterministic=torch.are_deterministic_algorithms_enabled()
    )
    return flags


def _in_pieces(y: Tensor) -> tuple[int, int]:
    return triton.cdiv(y[..., 0].numel(), 8), triton.cdiv(y.shape[3], MAX_OUTPUTS)


def _sizes(y: Tensor, height: int, width: int) -> tuple[Any, ...]:
    return y[..., 0].numel(), height, width, y.shape[3], y.shape[1], y.shape[2]
