"""Images for the benchmarks of the recipe `lartpc`: straight tracks, until a share of all pixels has charge."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Pixels = tuple[Tensor, Tensor, Tensor]
"""Index, charge and offsets, as `ops.pixels` takes them."""


def track(rng: np.random.Generator, side: int) -> NDArray[np.int64]:
    """Pixels of a straight line, 3 to 6 wide and up to 0.7 of a side long."""
    angle, start = rng.uniform(0, 2 * np.pi), rng.uniform(0, side, 2)
    along = np.arange(0, rng.uniform(0.08, 0.7) * side, 0.5)
    across = np.arange(rng.integers(3, 7))[:, None] - 2
    wire = np.rint(start[0] + along * np.sin(angle) + across * np.cos(angle)).astype(np.int64)
    tick = np.rint(start[1] + along * np.cos(angle) - across * np.sin(angle)).astype(np.int64)
    inside = (wire >= 0) & (wire < side) & (tick >= 0) & (tick < side)
    return np.asarray(wire[inside] * side + tick[inside])


def tracks(events: int, side: int, share: float, seed: int = 1) -> Pixels:
    """Events in which at least `share` of the pixels are not zero."""
    rng, pixels = np.random.default_rng(seed), []
    for _ in range(events):
        occupied = np.zeros(side * side, dtype=bool)
        while occupied.sum() < share * side * side:
            occupied[track(rng, side)] = True
        pixels.append(np.flatnonzero(occupied).astype(np.int32))
    charge = rng.uniform(0.1, 1.1, sum(map(len, pixels))).astype(np.float32)
    offsets = np.cumsum([0, *map(len, pixels)])
    return torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(charge), torch.from_numpy(offsets)
