"""The blocks on CPUs: only active cells, convolutions as matrix products, and gradients only of winners.

The work is split into chunks that fit the cache, and distributed over as many threads as torch uses. Each thread
multiplies with one thread. The chunks of the backward pass end with a row of cells. First the even chunks are computed,
then the odd ones, so that no two threads write to the same position. Sums are always formed in the same order.
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

from clew.recipes.lartpc.kernels import cpu_loops
from clew.recipes.lartpc.kernels.portable import cells_with_active, elu_slope, is_dense

CHUNK_BYTES = 1 << 20
"""Maximum size of the unfolded input of a chunk, bytes."""
Task = TypeVar("Task")
Numbers = NDArray[np.int64]


@cache
def _thread_pool(count: int) -> ThreadPoolExecutor:
    """Return a pool of threads in which torch uses one thread each. Other threads keep the setting of torch."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="lartpc", initializer=lambda: torch.set_num_threads(1))
    barrier = threading.Barrier(count)
    for future in [pool.submit(barrier.wait) for _ in range(count)]:
        future.result()
    torch.set_num_threads(count)
    return pool


os.register_at_fork(after_in_child=_thread_pool.cache_clear)


def _run_in_threads(work: Callable[[Task], Any], tasks: Iterable[Task]) -> None:
    """Run all tasks, in as many threads as torch has."""
    count = torch.get_num_threads()
    if count == 1:
        for task in tasks:
            work(task)
        return
    list(_thread_pool(count).map(work, tasks))


def _chunks(cells: Numbers, size: int) -> list[Numbers]:
    return [cells[first : first + size] for first in range(0, len(cells), size)]


def _row_bands(cells: Numbers, columns: int, min_cells: int) -> list[slice]:
    """Split cells into bands that end with a row of cells, of at least `min_cells` cells except the last."""
    row = cells // columns
    ends = np.append(np.flatnonzero(np.diff(row)) + 1, len(cells))
    bands, start = list[slice](), 0
    for end in ends.tolist():
        if end - start >= min_cells or end == len(cells):
            bands.append(slice(start, end))
            start = end
    return bands


def _active_cells(active: Tensor) -> Numbers:
    return np.flatnonzero(active.numpy())


def _background_image(fill: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Return an image of the background, and winners, both to be overwritten in active cells."""
    shape = (*active.shape, fill.numel())
    return fill.detach().expand(shape).clone(memory_format=torch.contiguous_format), torch.zeros(
        shape, dtype=torch.uint8
    )


def _inactive_gradient_sum(gradient: Tensor, active: Tensor) -> Tensor:
    """Return the sum of a gradient over all inactive cells."""
    return (~active).view(1, -1).to(gradient.dtype).mm(gradient.view(-1, gradient.shape[3])).squeeze(0)


def _elu_backward(gradient: Tensor, y: Tensor, winner: Tensor, cells: Numbers) -> tuple[Tensor, Tensor]:
    """Return the gradient before ELU and the winners of the listed cells, both (cells, outputs)."""
    rows, outputs = torch.from_numpy(cells), y.shape[3]
    chosen = gradient.view(-1, outputs)[rows] * elu_slope(y.view(-1, outputs)[rows])
    return chosen, winner.view(-1, outputs)[rows]


def _pixel_index(index: Tensor, charge: Tensor, offsets: Tensor) -> Tensor:
    """Return the index of the pixels; for dense images that of all pixels."""
    if not is_dense(index, charge):
        return index
    events = offsets.numel() - 1
    return torch.arange(charge.numel() // events, dtype=torch.int32).repeat(events)


def _windows(index: Tensor, charge: Tensor, offsets: Tensor, active: Tensor, width: int) -> Tensor:
    """Return the input window of every active cell (cells, 9, 9)."""
    events, ends = active.numpy(), offsets.numpy()
    number = (np.cumsum(events) - 1).reshape(events.shape)
    result = torch.zeros((int(events.sum()), 9, 9), dtype=charge.dtype)

    def fill(event: int) -> None:
        event_pixels = slice(ends[event], ends[event + 1])
        cpu_loops.fill_windows(
            index.numpy()[event_pixels], charge.numpy()[event_pixels], width, number[event], result.numpy()
        )

    _run_in_threads(fill, range(len(events)))
    return result


def _window_matrix(weight: Tensor) -> Tensor:
    """Return weights (outputs, 1, 5, 5) as a matrix from a window (81) to all convolutions of a cell (25 * outputs)."""
    matrix = weight.new_zeros((9, 9, 5, 5, weight.shape[0]))
    for row in range(5):
        for column in range(5):
            matrix[row : row + 5, column : column + 5, row, column] = weight[:, 0].permute(1, 2, 0)
    return matrix.view(81, -1)


def pixels(
    index: Tensor, charge: Tensor, offsets: Tensor, fill: Tensor, weight: Tensor, bias: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `ops.pixels`."""
    index = _pixel_index(index, charge, offsets)
    ends, outputs = offsets.numpy(), weight.shape[0]
    active = torch.zeros((len(ends) - 1, height // 5, width // 5), dtype=torch.bool)
    _run_in_threads(
        lambda e: cpu_loops.mark_active(index.numpy()[ends[e] : ends[e + 1]], width, active.numpy()[e]),
        range(len(active)),
    )
    y, winner = _background_image(fill, active)
    windows = _windows(index, charge.detach(), offsets, active, width).view(-1, 81)
    matrix, offset = _window_matrix(weight.detach()), bias.detach().repeat(25)
    cells, chunk = _active_cells(active), max(1, CHUNK_BYTES // (100 * outputs))

    def work(first: int) -> None:
        z = torch.addmm(offset, windows[first : first + chunk], matrix).view(-1, 25, outputs)
        cpu_loops.pool(
            z.numpy(), cells[first : first + chunk], y.view(-1, outputs).numpy(), winner.view(-1, outputs).numpy()
        )

    _run_in_threads(work, range(0, len(cells), chunk))
    return y, winner, active, charge.new_empty(0)


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
    index = _pixel_index(index, charge, offsets)
    gradient = gradient.contiguous()
    cells, outputs = _active_cells(active), y.shape[3]
    inner, won = _elu_backward(gradient, y, winner, cells)
    windows = _windows(index, charge.detach(), offsets, active, width)
    weight = gradient.new_zeros((outputs, 5, 5))
    cpu_loops.add_window_gradients(inner.numpy(), won.numpy(), windows.numpy(), weight.numpy())
    return _inactive_gradient_sum(gradient, active), weight.view(outputs, 1, 5, 5), inner.sum(dim=0)


def _weight_matrix(weight: Tensor) -> Tensor:
    """Return weights (outputs, channels, 5, 5) with channels last, as in images: (outputs, 5, 5 * channels)."""
    return weight.detach().permute(0, 2, 3, 1).reshape(weight.shape[0], 5, -1).contiguous()


def cells(
    x: Tensor, active: Tensor, before: Tensor, fill: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `ops.cells`."""
    outputs, channels = weight.shape[:2]
    y_active = cells_with_active(active, edges=True)
    y, winner = _background_image(fill, y_active)
    taps, image = _weight_matrix(weight).view(outputs, -1).t().contiguous(), x.detach().contiguous().numpy()

    def work(piece: Numbers) -> None:
        unfolded = torch.empty((len(piece), 25, 5, 5 * channels), dtype=x.dtype)
        cpu_loops.unfold(image, piece, unfolded.numpy())
        z = torch.addmm(bias.detach(), unfolded.view(-1, 25 * channels), taps).view(-1, 25, outputs)
        cpu_loops.pool(z.numpy(), piece, y.view(-1, outputs).numpy(), winner.view(-1, outputs).numpy())

    _run_in_threads(work, _chunks(_active_cells(y_active), max(1, CHUNK_BYTES // (625 * channels * x.element_size()))))
    return y, winner, y_active


def cells_backward(
    gradient: Tensor, x: Tensor, x_active: Tensor, y: Tensor, winner: Tensor, active: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See `ops.cells_backward`."""
    gradient = gradient.contiguous()
    listed, outputs, channels = _active_cells(active), *weight.shape[:2]
    inner, won = _elu_backward(gradient, y, winner, listed)
    taps, dx, image = _weight_matrix(weight), torch.zeros_like(x), x.contiguous().numpy()
    bands = _row_bands(listed, active.shape[2], max(1, len(listed) // (4 * torch.get_num_threads())))
    parts = torch.zeros((len(bands), *taps.shape), dtype=x.dtype)

    def work(number: int) -> None:
        band = bands[number]
        cpu_loops.add_gradients(
            inner[band].numpy(), won[band].numpy(), listed[band], image, taps.numpy(), dx.numpy(), parts[number].numpy()
        )

    for parity in (0, 1):
        _run_in_threads(work, range(parity, len(bands), 2))
    dweight = parts.sum(dim=0).view(outputs, 5, 5, channels).permute(0, 3, 1, 2).contiguous()
    return dx, weight.new_zeros(channels), _inactive_gradient_sum(gradient, active), dweight, inner.sum(dim=0)
