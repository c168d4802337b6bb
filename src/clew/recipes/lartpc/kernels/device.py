"""The blocks on CUDA in bf16 with sums in float32: active cells alone where channels are few, torch's where many.

The products of the first two blocks are CUDA C++ (`cuda`, `compiled`): tensor cores fed from registers, on lists of
cells. The later blocks have little background left and matrices that cuDNN is good at; what is around its convolution
is done in one pass each way. What only moves numbers is Triton. Every size is known before the data is, lists count on
the device and programs go through them in turns: a whole training step can be captured in a CUDA graph.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as f

from clew.recipes.lartpc.kernels import lists, pooling, slopes
from clew.recipes.lartpc.kernels.compiled import kernel
from clew.recipes.lartpc.kernels.portable import beyond, whole_images

BLOCK = 1024
CELLS = 64
"""Cells that a program of Triton works on at a time."""
WIDE = 16
"""Channels a row of the first image has, used or not: whole sectors of memory, and what a tensor core takes at once."""
MOST = 64
"""Outputs of a block on listed cells."""
PLACES = 25


@cache
def _units(device: torch.device) -> int:
    """Multiprocessors."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _blocks(numbers: int) -> tuple[int]:
    return (max(1, triton.cdiv(numbers, BLOCK)),)


def _listed(active: Tensor) -> tuple[Tensor, Tensor]:
    """Where it is active, and how often; what follows in the list means nothing."""
    flat = active.contiguous().view(torch.uint8).view(-1)
    listed = torch.empty(flat.numel(), dtype=torch.int32, device=flat.device)
    count = torch.zeros(1, dtype=torch.int32, device=flat.device)
    lists.enlist[_blocks(flat.numel())](flat, listed, count, flat.numel(), BLOCK)
    return listed, count


def _looked(active: Tensor, rows: int, columns: int, *, side: int, begin: int, edges: bool) -> Tensor:
    """See `lists.look`."""
    events, height, width = active.shape
    found = torch.empty((events, rows, columns), dtype=torch.bool, device=active.device)
    sizes = (found.numel(), height, width, rows, columns, int(edges))
    seen, own = active.view(torch.uint8), found.view(torch.uint8)
    grid = (triton.cdiv(found.numel(), 128),)
    lists.look[grid](seen, own, *sizes, SIDE=side, BEGIN=begin, BLOCK=128)
    return found


def _painted(like: Tensor, fill: Tensor, shape: tuple[int, ...], channels: int) -> Tensor:
    """An image of the background; channels that `fill` does not have are zero."""
    y = like.new_empty((*shape, channels))
    lists.paint[_blocks(y.numel())](y, fill.detach(), y.numel(), fill.numel(), channels, BLOCK)
    return y


def _wide(image: Tensor) -> Tensor:
    """With rows of 16 channels: as it is, if it has those behind what it shows."""
    if image.stride(2) == WIDE and image.stride(3) == 1 and image.stride(1) == WIDE * image.shape[2]:
        return image
    return f.pad(image, (0, WIDE - image.shape[3])).contiguous()


@cache
def _first_order(outputs: int, device: torch.device) -> Tensor:
    """Where in weights (outputs, 1, 5, 5) and a zero behind them the numbers of every lane lie, see first.cu."""
    ky, px, lane, half, e = torch.meshgrid(*map(torch.arange, (5, 5, 32, 2, 2)), indexing="ij")
    output, kx = lane // 4 + 8 * half, 2 * (lane % 4) + e - torch.where(px < 4, px, 0)
    there = (kx >= 0) & (kx < 5) & (output < outputs)
    return torch.where(there, output * 25 + ky * 5 + kx, outputs * 25).to(device, torch.int32)


@cache
def _second_order(outputs: int, channels: int, turned: bool, device: torch.device) -> Tensor:
    """The same of weights (outputs, channels, 5, 5), see second.cu; `turned`: rows are channels."""
    sizes = (outputs // 16, 25, 32, 4, 2)
    group, tap, lane, part, e = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
    row, k = lane // 4 + 8 * (part % 2), 4 * (lane % 4) + 2 * (part // 2) + e
    output, channel = (16 * group + k, row) if turned else (16 * group + row, k)
    there = channel < channels
    return torch.where(there, (output * channels + channel) * 25 + tap, outputs * channels * 25).to(device, torch.int32)


def _ordered(weight: Tensor, order: Tensor) -> Tensor:
    found = torch.empty(order.numel(), dtype=torch.bfloat16, device=weight.device)
    own = weight.detach().contiguous()
    lists.arrange[_blocks(order.numel())](own, order, found, order.numel(), own.numel(), BLOCK)
    return found


def _image(index: Tensor, charge: Tensor, offsets: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Dense images, and which cells see a pixel of them. Pixels after the last offset are passed over."""
    events = offsets.numel() - 1
    if whole_images(index, charge):
        return charge, torch.ones((events, height // 5, width // 5), dtype=torch.bool, device=charge.device)
    image = charge.new_zeros(events * height * width)
    active = torch.zeros((events, height // 5, width // 5), dtype=torch.bool, device=charge.device)
    grid = (triton.cdiv(16 * _units(charge.device), events), events)
    lists.scatter[grid](index, charge, offsets, image, active.view(torch.uint8), height, width, BLOCK)
    return image, active


def pixels(
    index: Tensor, charge: Tensor, offsets: Tensor, fill: Tensor, weight: Tensor, bias: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `ops.pixels`; at most 16 outputs. Keeps the image."""
    device, outputs = charge.device, weight.shape[0]
    image, active = _image(index, charge, offsets, height, width)
    y = _painted(charge, fill, active.shape, WIDE)
    winner = torch.empty_like(y, dtype=torch.uint8)
    taps = _ordered(weight, _first_order(outputs, device))
    given = [image, *_listed(active), taps, bias.detach(), y, winner, height, width, outputs]
    kernel("first", "first_forward", device)((3 * _units(device), 1, 1), (128, 1, 1), given)
    kept = charge.new_empty(0) if image is charge else image
    return y[..., :outputs], winner[..., :outputs], active, kept


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
    """See `ops.pixels_backward`: what is not active is not looked at, since `cells_backward` puts nothing there."""
    device, outputs = charge.device, y.shape[3]
    taps, total, idle = (torch.zeros((outputs, *more), device=device) for more in ((1, 5, 5), (), ()))
    image = charge if whole_images(index, charge) else kept
    given = [image, *_listed(active), _wide(gradient), _wide(y), _wide(winner), taps, total, height, width, outputs]
    kernel("first", "first_learn", device)((2 * _units(device), 1, 1), (128, 1, 1), given)
    return idle, taps, total


def few(weight: Tensor) -> bool:
    """Whether a block is done on lists; others are done whole."""
    outputs, channels = weight.shape[:2]
    return channels <= WIDE and outputs % 16 == 0 and outputs <= MOST


def cells(
    x: Tensor, active: Tensor, before: Tensor, fill: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `ops.cells`."""
    device, (height, width), (outputs, channels) = x.device, x.shape[1:3], weight.shape[:2]
    found = _looked(active, height // 5, width // 5, side=9, begin=-2, edges=True)
    y = _painted(x, fill, found.shape, outputs)
    winner = torch.empty_like(y, dtype=torch.uint8)
    taps = _ordered(weight, _second_order(outputs, channels, False, device))
    given = [_wide(x), *_listed(found), taps, bias.detach(), y, winner, height, width, outputs]
    kernel("second", "second_forward", device)((2 * _units(device), 1, 1), (2 * outputs, 1, 1), given)
    return y, winner, found


def cells_backward(
    gradient: Tensor, x: Tensor, seen: Tensor, y: Tensor, winner: Tensor, active: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See `ops.cells_backward`: on lists the gradient of what is not active in x is handed to `before`."""
    device, (height, width), (outputs, channels) = x.device, x.shape[1:3], weight.shape[:2]
    inner, constant, total = _inner(gradient.contiguous(), y, active)
    taps, arrived = (torch.zeros(size, device=device) for size in (PLACES * outputs * WIDE, WIDE))
    room, given = 4 * 16 * 81 * 16, [_wide(x), *_listed(active), inner, winner, taps, height, width, outputs]
    run = kernel("second", "second_learn", device, room)
    run((_units(device), 1, 1), (4 * outputs, 1, 1), given, shared_mem=room)
    dx = x.new_empty((*x.shape[:3], WIDE))
    squares = _looked(seen, -(-height // 5), -(-width // 5), side=5, begin=0, edges=False)
    turned = _ordered(weight, _second_order(outputs, channels, True, device))
    room = outputs // 16 * PLACES * 32 * 16
    given = [inner, winner, seen, *_listed(squares), turned, dx, arrived, height, width, outputs]
    run = kernel("second", "second_return", device, room)
    run((2 * _units(device), 1, 1), (128, 1, 1), given, shared_mem=room)
    before = _carried(inner, winner, total, weight, height, width) - arrived[:channels]
    dweight = taps.view(5, 5, outputs, WIDE)[..., :channels].permute(2, 3, 0, 1)
    return dx[..., :channels], before, constant, dweight.contiguous(), total


def _inner(gradient: Tensor, y: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient before ELU in active cells, 0 elsewhere; the sum of what arrived elsewhere; the sum of the first."""
    channels = y.shape[3]
    padded = max(16, triton.next_power_of_2(channels))
    inner, idle, passed = torch.empty_like(gradient), *(torch.zeros(channels, device=y.device) for _ in range(2))
    grid, sizes = (4 * _units(y.device),), (active.numel(), channels, padded, CELLS)
    slopes.back_through[grid](gradient, y, active.view(torch.uint8), inner, idle, passed, *sizes)
    return inner, idle, passed


@cache
def _border(height: int, width: int, device: torch.device) -> Tensor:
    """The cells of an image that see beyond it."""
    return beyond(height, width, device).view(-1).nonzero().view(-1).to(torch.int32)


@cache
def _inside(device: torch.device) -> Tensor:
    """(25 taps, 25 kinds): whether a tap lies within the image, by the kinds of `slopes.at_edges`."""
    k, kind = torch.arange(5).view(5, 1), torch.arange(5)
    along = (k >= 2 - kind) & (k <= 6 - kind)
    return torch.einsum("yk,xl->yxkl", along.float(), along.float()).reshape(25, 25).to(device)


def _carried(inner: Tensor, winner: Tensor, total: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    """The sum over all positions of x of what winners carry back to them."""
    events, rows, columns, outputs = inner.shape
    border, padded = _border(height, width, inner.device), max(16, triton.next_power_of_2(outputs))
    kinds = torch.zeros((PLACES, padded), dtype=torch.float32, device=inner.device)
    number = events * border.numel()
    sizes = (number, border.numel(), rows, columns, height, width, outputs, padded, 32)
    slopes.at_edges[(triton.cdiv(number, 32),)](inner, winner, border, kinds, *sizes)
    kinds = kinds[:, :outputs]
    kinds[12] += total - kinds.sum(dim=0)
    within = weight.detach().to(inner.dtype).float().flatten(2) @ _inside(inner.device)
    return torch.einsum("ko,ock->c", kinds, within)


def whole(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """See `ops.whole`."""
    outputs, (events, height, width) = weight.shape[0], x.shape[:3]
    own = weight.detach().to(x.dtype, memory_format=torch.channels_last)
    with _tuned():
        z = f.conv2d(x.permute(0, 3, 1, 2), own, padding=2).permute(0, 2, 3, 1).contiguous()
    size = (events, height // 5, width // 5, outputs)
    y, winner = (x.new_empty(size, dtype=kind) for kind in (x.dtype, torch.uint8))
    run = pooling.pool[_in_pieces(y)]
    run(z, bias.detach(), y, winner, *_sizes(y, height, width), WIDE=MOST, CELLS=8)
    return y, winner


def whole_backward(
    gradient: Tensor, x: Tensor, y: Tensor, winner: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `ops.whole_backward`."""
    (events, height, width), (rows, columns, outputs) = x.shape[:3], y.shape[1:]
    dz, total = x.new_empty((events, height, width, outputs)), torch.zeros(outputs, device=x.device)
    dz[:, 5 * rows :] = 0
    dz[:, :, 5 * columns :] = 0
    run = pooling.unpool[_in_pieces(y)]
    run(gradient.contiguous(), y, winner, dz, total, *_sizes(y, height, width), WIDE=MOST, CELLS=8)
    own = weight.detach().to(x.dtype, memory_format=torch.channels_last)
    with _tuned():
        dx, dweight, _ = torch.ops.aten.convolution_backward(
            dz.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), own, None,
            [1, 1], [2, 2], [1, 1], False, [0, 0], 1, [True, True, False],
        )  # fmt: skip
    return dx.permute(0, 2, 3, 1).contiguous(), dweight.to(weight.dtype), total


def _tuned() -> AbstractContextManager[None]:
    """cuDNN tries what it has at the first call of a size, and takes the fastest."""
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=True, benchmark_limit=None, deterministic=torch.are_deterministic_algorithms_enabled()
    )
    return flags


def _in_pieces(y: Tensor) -> tuple[int, int]:
    return triton.cdiv(y[..., 0].numel(), 8), triton.cdiv(y.shape[3], MOST)


def _sizes(y: Tensor, height: int, width: int) -> tuple[Any, ...]:
    return y[..., 0].numel(), height, width, y.shape[3], y.shape[1], y.shape[2]
