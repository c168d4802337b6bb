"""The blocks on CUDA, by Triton, in 16 bits with sums in float32: active cells alone, products on tensor cores.

Every size is known before the data is, lists count on the device and programs go through them in turns: a whole
training step can be captured in a CUDA graph. Images have their channels padded to 16, so that a row is whole sectors.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as f

from clew.recipes.lartpc.kernels import first, later, lists, slopes
from clew.recipes.lartpc.kernels.portable import sees

BLOCK = 1024
CELLS = 64
"""Cells, or positions, that a program works on at a time."""
OUTPUTS = 64
"""Output channels that it does."""


@cache
def _programs(device: torch.device) -> int:
    """How many fill a device."""
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


def _listed(active: Tensor) -> tuple[Tensor, Tensor]:
    """Where it is active, and how often; what follows in the list means nothing."""
    flat = active.contiguous().view(torch.uint8).view(-1)
    listed = torch.empty(flat.numel(), dtype=torch.int32, device=flat.device)
    count = torch.zeros(1, dtype=torch.int32, device=flat.device)
    lists.enlist[(triton.cdiv(flat.numel(), BLOCK),)](flat, listed, count, flat.numel(), BLOCK)
    return listed, count


def _stride(image: Tensor) -> int:
    """From a cell to the next; where there is one cell alone, torch's own number may be any."""
    return image.shape[3] if image.is_contiguous() else image.stride(2)


def _filled(like: Tensor, fill: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """An image of the background with room to 16 channels, and winners."""
    channels = fill.numel()
    y = like.new_empty((*active.shape, -(-channels // 16) * 16))
    y[..., :channels] = fill.to(like.dtype)
    return y[..., :channels], torch.zeros((*active.shape, channels), dtype=torch.uint8, device=like.device)


def _inner(gradient: Tensor, y: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient before ELU in active cells, 0 elsewhere; the sum of what arrived elsewhere; the sum of the first."""
    channels = y.shape[3]
    padded = max(16, triton.next_power_of_2(channels))
    inner, sums = torch.empty_like(gradient), torch.zeros((2, padded), dtype=torch.float32, device=y.device)
    slopes.back_through[(_programs(y.device),)](
        gradient, y, active.view(torch.uint8), inner, sums, active.numel(), channels, _stride(y), padded, CELLS
    )
    return inner, sums[0, :channels].clone(), sums[1, :channels].clone()


def _image(index: Tensor, charge: Tensor, offsets: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Dense images, and which cells see a pixel of them. Pixels after the last offset are passed over."""
    events = offsets.numel() - 1
    image = charge.new_zeros(events * height * width)
    active = torch.zeros((events, height // 5, width // 5), dtype=torch.uint8, device=charge.device)
    grid = (triton.cdiv(max(1, index.numel()), BLOCK),)
    lists.scatter[grid](index, charge, offsets, image, active, index.numel(), events, height, width, BLOCK)
    return image, active


def _spread(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights (outputs, 1, 5, 5) as matrices (25 places, 128, 16) from a window of 81 to a convolution."""
    found = weight.new_zeros((25, 9, 9, weight.shape[0]))
    for place in range(25):
        found[place, place // 5 : place // 5 + 5, place % 5 : place % 5 + 5] = weight[:, 0].permute(1, 2, 0)
    return f.pad(found.view(25, 81, -1), (0, 16 - weight.shape[0], 0, 47)).to(dtype).contiguous()


def pixels(
    index: Tensor, charge: Tensor, offsets: Tensor, fill: Tensor, weight: Tensor, bias: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """See `ops.pixels`; at most 16 outputs."""
    image, active = _image(index, charge, offsets, height, width)
    y, winner = _filled(charge, fill, active)
    listed, count = _listed(active)
    matrix, grid = _spread(weight.detach(), charge.dtype), (_programs(charge.device),)
    first.pixels_forward[grid](
        image, listed, count, matrix, bias.detach(), y, winner, height, width, _stride(y), weight.shape[0], CELLS
    )
    return y, winner, active.view(torch.bool)


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
    """See `ops.pixels_backward`."""
    image, _ = _image(index, charge, offsets, height, width)
    inner, constant, total = _inner(gradient, y, active)
    (listed, count), outputs = _listed(active), y.shape[3]
    taps = torch.zeros((32, 16), dtype=torch.float32, device=y.device)
    grid = (_programs(y.device),)
    first.pixels_learn[grid](image, listed, count, inner, winner, taps, height, width, outputs, CELLS)
    dweight = taps[:25, :outputs].t().reshape(outputs, 1, 5, 5)
    return constant, dweight, total


def _sizes(weight: Tensor) -> dict[str, Any]:
    outputs, channels = weight.shape[:2]
    padded = max(16, triton.next_power_of_2(channels))
    return {"CHANNELS": channels, "PADDED": padded, "OUTPUTS": min(OUTPUTS, outputs)}


def _taps(weight: Tensor, padded: int, dtype: torch.dtype) -> Tensor:
    """Weights (outputs, channels, 5, 5) as (25, padded, outputs)."""
    outputs, channels = weight.shape[:2]
    found = weight.detach().permute(2, 3, 1, 0).reshape(25, channels, outputs)
    return f.pad(found, (0, 0, 0, padded - channels)).to(dtype).contiguous()


def cells(
    x: Tensor, active: Tensor, before: Tensor, fill: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `ops.cells`; outputs are 16, 32 or a multiple of 64."""
    found, outputs, sizes = sees(active, edges=True), weight.shape[0], _sizes(weight)
    y, winner = _filled(x, fill, found)
    listed, count = _listed(found)
    taps, grid = _taps(weight, sizes["PADDED"], x.dtype), (_programs(x.device), outputs // sizes["OUTPUTS"])
    later.cells_forward[grid](
        x, listed, count, taps, bias.detach(), y, winner, *x.shape[1:3], _stride(x), outputs, **sizes, CELLS=CELLS
    )
    return y, winner, found


def cells_backward(
    gradient: Tensor, x: Tensor, seen: Tensor, y: Tensor, winner: Tensor, active: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See `ops.cells_backward`: the gradient of what is not active in x is handed to `before`."""
    (outputs, channels), sizes, programs = weight.shape[:2], _sizes(weight), _programs(x.device)
    inner, constant, total = _inner(gradient, y, active)
    dtaps = torch.zeros((25, sizes["PADDED"], outputs), dtype=torch.float32, device=x.device)
    grid = (max(1, programs // 4), 25, outputs // sizes["OUTPUTS"])
    listed, count = _listed(active)
    later.cells_learn[grid](
        x, listed, count, inner, winner, dtaps, *x.shape[1:3], _stride(x), outputs, **sizes, CELLS=CELLS
    )
    taps = _taps(weight, sizes["PADDED"], x.dtype)
    dx, arrived = _returned(inner, winner, seen, taps, sizes)
    dweight = dtaps[:, :channels].view(5, 5, channels, outputs).permute(3, 2, 0, 1).contiguous()
    before = (taps.float().sum(dim=0) @ total)[:channels] - arrived
    return dx, before, constant, dweight, total


def _returned(
    inner: Tensor, winner: Tensor, seen: Tensor, taps: Tensor, sizes: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """The gradient at active positions, and the sum of all that arrives there or would arrive beyond the image.

    What winners carry back besides arrives at positions that are not active.
    """
    events, height, width = seen.shape
    channels, outputs = sizes["CHANNELS"], inner.shape[3]
    dx = inner.new_zeros((events, height, width, channels))
    arrived = torch.zeros(sizes["PADDED"], dtype=torch.float32, device=seen.device)
    turned, grid = taps.transpose(1, 2).contiguous(), (_programs(seen.device),)
    inside, beyond = f.pad(seen, (2, 2, 2, 2)), f.pad(torch.zeros_like(seen), (2, 2, 2, 2), value=True)
    for places, keep in ((inside, 1), (beyond, 0)):
        listed, count = _listed(places)
        later.cells_return[grid](
            inner, winner, listed, count, turned, dx, arrived, height, width, outputs, keep, **sizes, PLACES=CELLS
        )
    return dx, arrived[:channels]
