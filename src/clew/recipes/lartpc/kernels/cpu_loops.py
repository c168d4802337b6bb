"""The loops of `cpu.py`, compiled by numba at the first use and cached. They release the GIL.

A window is the 9x9 positions that are the input of the 25 convolutions of a cell. It starts two rows and two columns
before the cell.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

Array = Any


@njit(nogil=True, cache=True)
def mark_active(index: Array, width: int, active: Array) -> None:
    """Mark the cells (rows, columns) of an event whose windows contain a pixel."""
    rows, columns = active.shape
    for pixel in index:
        y, x = pixel // width, pixel % width
        for i in range(max(0, (y - 2) // 5), min(rows, (y + 2) // 5 + 1)):
            for j in range(max(0, (x - 2) // 5), min(columns, (x + 2) // 5 + 1)):
                active[i, j] = True


@njit(nogil=True, cache=True)
def fill_windows(index: Array, charge: Array, width: int, number: Array, out: Array) -> None:
    """Fill the windows (cells, 9, 9) from the pixels of an event; `number` (rows, columns) numbers the cells."""
    rows, columns = number.shape
    for n in range(len(index)):
        y, x = index[n] // width, index[n] % width
        for i in range(max(0, (y - 2) // 5), min(rows, (y + 2) // 5 + 1)):
            for j in range(max(0, (x - 2) // 5), min(columns, (x + 2) // 5 + 1)):
                out[number[i, j], y - 5 * i + 2, x - 5 * j + 2] = charge[n]


@njit(nogil=True, cache=True)
def unfold(x: Array, cells: Array, out: Array) -> None:
    """Copy the inputs of the 25 convolutions of each cell (cells, 25, 5 rows, 5 columns * channels).

    Positions beyond the image are zero.
    """
    height, width, channels = x.shape[1:]
    rows, columns = height // 5, width // 5
    flat = x.reshape(-1)
    for n in range(len(cells)):
        j, i, event = cells[n] % columns, cells[n] // columns % rows, cells[n] // (rows * columns)
        for place in range(25):
            left = 5 * j + place % 5 - 2
            first, last = max(0, -left) * channels, min(5, width - left) * channels
            for row in range(5):
                y = 5 * i + place // 5 + row - 2
                run = out[n, place, row]
                if y < 0 or y >= height or first > 0 or last < 5 * channels:
                    run[:] = 0
                if 0 <= y < height:
                    begin = ((event * height + y) * width + left) * channels
                    run[first:last] = flat[begin + first : begin + last]


@njit(nogil=True, cache=True)
def pool(z: Array, cells: Array, y: Array, winner: Array) -> None:
    """Write the ELU of the maximum of 25 values (cells, 25, outputs) to the rows `cells` of y, and its index to winner.

    The first of equal values wins.
    """
    outputs = z.shape[2]
    best, place = np.empty(outputs, z.dtype), np.empty(outputs, np.int32)
    for n in range(len(cells)):
        best[:] = z[n, 0]
        place[:] = 0
        for p in range(1, 25):
            for o in range(outputs):
                value = z[n, p, o]
                larger = value > best[o]
                best[o] = value if larger else best[o]
                place[o] = p if larger else place[o]
        row = cells[n]
        for o in range(outputs):
            y[row, o] = best[o] if best[o] > 0 else math.expm1(best[o])
            winner[row, o] = place[o]


@njit(nogil=True, cache=True)
def add_window_gradients(inner: Array, winner: Array, windows: Array, weight: Array) -> None:
    """Add the contributions of the winners in windows (cells, 9, 9) to the gradient of weights (outputs, 5, 5)."""
    for n in range(len(windows)):
        for o in range(weight.shape[0]):
            g, top, left = inner[n, o], winner[n, o] // 5, winner[n, o] % 5
            for row in range(5):
                for column in range(5):
                    weight[o, row, column] += g * windows[n, top + row, left + column]


@njit(nogil=True, cache=True, fastmath={"contract"})
def add_gradients(
    inner: Array, winner: Array, cells: Array, x: Array, weight: Array, dx: Array, dweight: Array
) -> None:
    """Add the contributions of winners (cells, outputs) to the gradients of x and weights (outputs, 5, 5 * channels).

    A window and its gradient are copied to buffers and back, so that all inner loops have the same length and stay in
    the first-level cache.
    """
    height, width, channels = x.shape[1:]
    rows, columns = height // 5, width // 5
    window, dwindow = np.zeros((9, 9 * channels), x.dtype), np.zeros((9, 9 * channels), x.dtype)
    run = np.uintp(5 * channels)  # unsigned: no check for negative indices
    for n in range(len(cells)):
        j, i, event = cells[n] % columns, cells[n] // columns % rows, cells[n] // (rows * columns)
        above, before = 5 * i - 2, 5 * j - 2
        first, last = max(0, -before), min(9, width - before)
        window[:] = 0
        dwindow[:] = 0
        for row in range(max(0, -above), min(9, height - above)):
            window[row, first * channels : last * channels] = x[
                event, above + row, before + first : before + last
            ].ravel()
        for o in range(weight.shape[0]):
            g, top, left = inner[n, o], winner[n, o] // 5, np.uintp(winner[n, o] % 5 * channels)
            for row in range(5):
                line, dline, taps, dtaps = window[top + row], dwindow[top + row], weight[o, row], dweight[o, row]
                for k in range(run):
                    dtaps[k] += g * line[left + k]
                for k in range(run):
                    dline[left + k] += g * taps[k]
        for row in range(max(0, -above), min(9, height - above)):
            to = dx[event, above + row, before + first : before + last].reshape(-1)
            for k in range(len(to)):
                to[k] += dwindow[row, first * channels + k]
