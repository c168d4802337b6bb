"""The blocks on processors: active cells alone, their convolutions as matrix products, winners alone on the way back.

Work is dealt to as many threads as torch would use, a piece that fits the cache at a time; each thread multiplies by
itself. Pieces of the backward end with a row of cells and every other is done first: no two write to the same place,
and sums are formed in the same order every time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clew.recipes.lartpc.kernels import loops
from clew.recipes.lartpc.kernels.portable import sees, slope, whole_images

CACHE = 1 << 20
"""Bytes of unfolded input that a piece may have."""
Task = TypeVar("Task")
Numbers = NDArray[np.int64]


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    """Threads that each multiply by themselves; whatever thread begins later still has as many as torch was told."""
    ready = ThreadPoolExecutor(count, thread_name_prefix="lartpc", initializer=lambda: torch.set_num_threads(1))
    all_there = threading.Barrier(count)
    for each in [ready.submit(all_there.wait) for _ in range(count)]:
        each.result()
    torch.set_num_threads(count)
    return ready


os.register_at_fork(after_in_child=_threads.cache_clear)


def _each(work: Callable[[Task], Any], tasks: Iterable[Task]) -> None:
    """Do every task, in as many threads as torch has."""
    count = torch.get_num_threads()
    if count == 1:
        for task in tasks:
            work(task)
        return
    list(_threads(count).map(work, tasks))


def _pieces(cells: Numbers, most: int) -> list[Numbers]:
    return [cells[first : first + most] for first in range(0, len(cells), most)]


def _bands(cells: Numbers, columns: int, most: int) -> list[slice]:
    """Pieces that end with a row of cells, of at least `most` where there are as many."""
    row = cells // columns
    ends = np.append(np.flatnonzero(np.diff(row)) + 1, len(cells))
    found, begin = list[slice](), 0
    for end in ends.tolist():
        if end - begin >= most or end == len(cells):
            found.append(slice(begin, end))
            begin = end
    return found


def _listed(active: Tensor) -> Numbers:
    return np.flatnonzero(active.numpy())


def _filled(fill: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """An image of the background, to be written over where it is active, and winners."""
    shape = (*active.shape, fill.numel())
    return fill.detach().expand(shape).clone(memory_format=torch.contiguous_format), torch.zeros(
        shape, dtype=torch.uint8
    )


def _constant(gradient: Tensor, active: Tensor) -> Tensor:
    """The sum of a gradient over all cells that are not active."""
    return (~active).view(1, -1).to(gradient.dtype).mm(gradient.view(-1, gradient.shape[3])).squeeze(0)


def _inner(gradient: Tensor, y: Tensor, winner: Tensor, cells: Numbers) -> tuple[Tensor, Tensor]:
    """Before ELU, in the listed cells (cells, outputs): the gradient, and who won."""
    rows, outputs = torch.from_numpy(cells), y.shape[3]
    chosen = gradient.view(-1, outputs)[rows] * slope(y.view(-1, outputs)[rows])
    return chosen, winner.view(-1, outputs)[rows]


def _numbered(index: Tensor, charge: Tensor, offsets: Tensor) -> Tensor:
    """The places of pixels, where there are whole images all of them."""
    if not whole_images(index, charge):
        return index
    events = offsets.numel() - 1
    return torch.arange(charge.numel() // events, dtype=torch.int32).repeat(events)


def _windows(index: Tensor, charge: Tensor, offsets: Tensor, active: Tensor, width: int) -> Tensor:
    """What every active cell sees of the pixels (cells, 9, 9)."""
    events, ends = active.numpy(), offsets.numpy()
    number = (np.cumsum(events) - 1).reshape(events.shape)
    found = torch.zeros((int(events.sum()), 9, 9), dtype=charge.dtype)

    def fill(event: int) -> None:
        own = slice(ends[event], ends[event + 1])
        loops.windows(index.numpy()[own], charge.numpy()[own], width, number[event], found.numpy())

    _each(fill, range(len(events)))
    return found


def _spread(weight: Tensor) -> Tensor:
    """Weights (outputs, 1, 5, 5) as a matrix from a window (81) to all convolutions of a cell (25 * outputs)."""
    found = weight.new_zeros((9, 9, 5, 5, weight.shape[0]))
    for row in range(5):
        for column in range(5):
            found[row : row + 5, column : column + 5, row, column] = weight[:, 0].permute(1, 2, 0)
    return found.view(81, -1)


def pixels(
    index: Tensor, charge: Tensor, offsets: Tensor, fill: Tensor, weight: Tensor, bias: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `ops.pixels`."""
    index = _numbered(index, charge, offsets)
    ends, outputs = offsets.numpy(), weight.shape[0]
    active = torch.zeros((len(ends) - 1, height // 5, width // 5), dtype=torch.bool)
    _each(lambda e: loops.mark(index.numpy()[ends[e] : ends[e + 1]], width, active.numpy()[e]), range(len(active)))
    y, winner = _filled(fill, active)
    seen = _windows(index, charge.detach(), offsets, active, width).view(-1, 81)
    matrix, offset = _spread(weight.detach()), bias.detach().repeat(25)
    cells, most = _listed(active), max(1, CACHE // (100 * outputs))

    def work(first: int) -> None:
        z = torch.addmm(offset, seen[first : first + most], matrix).view(-1, 25, outputs)
        loops.pool(
            z.numpy(), cells[first : first + most], y.view(-1, outputs).numpy(), winner.view(-1, outputs).numpy()
        )

    _each(work, range(0, len(cells), most))
    return y, winner, active, charge.new_empty(0)


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
    """See `ops.pixels_backward`."""
    index = _numbered(index, charge, offsets)
    gradient = gradient.contiguous()
    cells, outputs = _listed(active), y.shape[3]
    inner, won = _inner(gradient, y, winner, cells)
    seen = _windows(index, charge.detach(), offsets, active, width)
    weight = gradient.new_zeros((outputs, 5, 5))
    loops.learn_windows(inner.numpy(), won.numpy(), seen.numpy(), weight.numpy())
    return _constant(gradient, active), weight.view(outputs, 1, 5, 5), inner.sum(dim=0)


def _matrix(weight: Tensor) -> Tensor:
    """Weights (outputs, channels, 5, 5) with channels last, as images have them: (outputs, 5, 5 * channels)."""
    return weight.detach().permute(0, 2, 3, 1).reshape(weight.shape[0], 5, -1).contiguous()


def cells(
    x: Tensor, active: Tensor, before: Tensor, fill: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `ops.cells`."""
    outputs, channels = weight.shape[:2]
    found = sees(active, edges=True)
    y, winner = _filled(fill, found)
    taps, image = _matrix(weight).view(outputs, -1).t().contiguous(), x.detach().contiguous().numpy()

    def work(piece: Numbers) -> None:
        seen = torch.empty((len(piece), 25, 5, 5 * channels), dtype=x.dtype)
        loops.unfold(image, piece, seen.numpy())
        z = torch.addmm(bias.detach(), seen.view(-1, 25 * channels), taps).view(-1, 25, outputs)
        loops.pool(z.numpy(), piece, y.view(-1, outputs).numpy(), winner.view(-1, outputs).numpy())

    _each(work, _pieces(_listed(found), max(1, CACHE // (625 * channels * x.element_size()))))
    return y, winner, found


def cells_backward(
    gradient: Tensor, x: Tensor, seen: Tensor, y: Tensor, winner: Tensor, active: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See `ops.cells_backward`."""
    gradient = gradient.contiguous()
    listed, outputs, channels = _listed(active), *weight.shape[:2]
    inner, won = _inner(gradient, y, winner, listed)
    taps, dx, image = _matrix(weight), torch.zeros_like(x), x.contiguous().numpy()
    bands = _bands(listed, active.shape[2], max(1, len(listed) // (4 * torch.get_num_threads())))
    parts = torch.zeros((len(bands), *taps.shape), dtype=x.dtype)

    def work(number: int) -> None:
        own = bands[number]
        loops.learn(
            inner[own].numpy(), won[own].numpy(), listed[own], image, taps.numpy(), dx.numpy(), parts[number].numpy()
        )

    for parity in (0, 1):
        _each(work, range(parity, len(bands), 2))
    dweight = parts.sum(dim=0).view(outputs, 5, 5, channels).permute(0, 3, 1, 2).contiguous()
    return dx, weight.new_zeros(channels), _constant(gradient, active), dweight, inner.sum(dim=0)
