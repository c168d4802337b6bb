"""The blocks with the convolution and pooling of torch on dense images: slow, and correct on any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as f

POOL = 5


def cells_with_active(active: Tensor, *, edges: bool) -> Tensor:
    """Return which cells have an active input; with `edges`, also those whose inputs extend beyond the image."""
    height, width = active.shape[1:]
    marks = f.max_pool2d(active.to(torch.float32).unsqueeze(1), 9, POOL, 2).squeeze(1) > 0
    return marks | border_cells(height, width, active.device) if edges else marks


def border_cells(height: int, width: int, device: torch.device) -> Tensor:
    """Return which cells (rows, columns) have inputs beyond the image."""

    def along(size: int) -> Tensor:
        first = POOL * torch.arange(size // POOL, device=device) - 2
        return (first < 0) | (first + 8 >= size)

    return along(height)[:, None] | along(width)


def elu_slope(y: Tensor) -> Tensor:
    """Return the derivative of ELU, from its result."""
    return torch.where(y > 0, torch.ones_like(y), y + 1)


def is_dense(index: Tensor, charge: Tensor) -> bool:
    """Return whether `charge` holds dense images instead of a list of pixels."""
    return index.numel() == 0 and charge.numel() > 0


def dense_images(index: Tensor, charge: Tensor, offsets: Tensor, height: int, width: int) -> Tensor:
    """Return the pixels of events as dense images (events, height, width, 1)."""
    events = offsets.numel() - 1
    if is_dense(index, charge):
        return charge.view(events, height, width, 1)
    event = torch.repeat_interleave(offsets.diff(), output_size=index.numel())
    flat = charge.new_zeros(events * height * width)
    flat[event * (height * width) + index] = charge
    return flat.view(events, height, width, 1)


def _block(x: Tensor, active: Tensor, fill: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a block; `active` are the active cells of the result."""
    z = f.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=2)
    best, place = f.max_pool2d(z, POOL, return_indices=True)
    width = x.shape[2]
    winner = (place // width % POOL * POOL + place % width % POOL).to(torch.uint8)
    y = torch.where(active.unsqueeze(3), f.elu(best).permute(0, 2, 3, 1), fill)
    return y.contiguous(), winner.permute(0, 2, 3, 1).contiguous(), active


def _backward(
    gradient: Tensor, x: Tensor, y: Tensor, winner: Tensor, active: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    constant = gradient.masked_fill(active.unsqueeze(3), 0).sum(dim=(0, 1, 2))
    inner = (gradient * elu_slope(y)).masked_fill(~active.unsqueeze(3), 0).permute(0, 3, 1, 2)
    place = winner.permute(0, 3, 1, 2).long()
    rows = POOL * torch.arange(inner.shape[2], device=x.device).view(-1, 1) + place // POOL
    columns = POOL * torch.arange(inner.shape[3], device=x.device) + place % POOL
    height, width = x.shape[1:3]
    z = gradient.new_zeros((*inner.shape[:2], height * width))
    z.scatter_(2, (rows * width + columns).flatten(2), inner.flatten(2))
    dx, dweight, dbias = torch.ops.aten.convolution_backward(
        z.view(*inner.shape[:2], height, width), x.permute(0, 3, 1, 2), weight, [weight.shape[0]],
        [1, 1], [2, 2], [1, 1], False, [0, 0], 1, [True, True, True],
    )  # fmt: skip
    return dx.permute(0, 2, 3, 1).contiguous(), constant, dweight, dbias


def pixels(
    index: Tensor, charge: Tensor, offsets: Tensor, fill: Tensor, weight: Tensor, bias: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `ops.pixels`."""
    x = dense_images(index, charge, offsets, height, width)
    occupied = dense_images(index, torch.ones_like(charge), offsets, height, width).squeeze(3)
    return *_block(x, cells_with_active(occupied, edges=False), fill, weight, bias), charge.new_empty(0)


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
    """See `ops.pixels_backward`."""
    x = dense_images(index, charge, offsets, height, width)
    weight = gradient.new_zeros((y.shape[3], 1, POOL, POOL))
    return _backward(gradient, x, y, winner, active, weight)[1:]


def cells(
    x: Tensor, active: Tensor, before: Tensor, fill: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `ops.cells`."""
    return _block(x, cells_with_active(active, edges=True), fill, weight, bias)


def cells_backward(
    gradient: Tensor, x: Tensor, x_active: Tensor, y: Tensor, winner: Tensor, active: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See `ops.cells_backward`."""
    dx, *others = _backward(gradient, x, y, winner, active, weight)
    return dx, weight.new_zeros(x.shape[3]), others[0], others[1], others[2]
