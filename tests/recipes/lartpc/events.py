"""Small images for tests."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from clew import Ragged, Table
from clew.recipes.lartpc.columns import CLASSES

SIDE = 625
Pixels = tuple[Tensor, Tensor, Tensor]
"""Index, charge and offsets."""


def listed(images: Tensor) -> Pixels:
    """The pixels of dense images (events, height, width) that are not zero."""
    flat = images.flatten(1)
    index = [each.nonzero()[:, 0].to(torch.int32) for each in flat]
    offsets = torch.tensor([0, *np.cumsum([len(each) for each in index]).tolist()])
    charge = [each[place.long()] for each, place in zip(flat, index, strict=True)]
    return torch.cat(index), torch.cat(charge), offsets


def particles(count: int, *, side: int = SIDE, seed: int = 0) -> Table:
    """Return straight lines, wider and longer from class to class, which a network can classify."""
    rng = np.random.default_rng(seed)
    label, index, charge = rng.integers(0, len(CLASSES), count), [], []
    for kind in label:
        step = np.arange(100 + 90 * kind) * 0.7
        angle, start = rng.uniform(0, np.pi / 2), rng.uniform(0, 50, 2)
        wire, tick = start[0] + step * np.sin(angle), start[1] + step * np.cos(angle)
        place = np.unique([(wire + k).astype(int) * side + tick.astype(int) for k in range(1 + kind)])
        index.append(place.astype(np.int32))
        charge.append(rng.uniform(0.5, 2.0, len(place)).astype(np.float32))
    lengths = [len(each) for each in index]
    pixels = Ragged.from_lengths(np.concatenate(index), lengths)
    energy = rng.uniform(0.1, 2.0, count).astype(np.float32)
    return Table(
        {
            "event": np.arange(count),
            "label": label.astype(np.int64),
            "energy": energy,
            "index": pixels,
            "charge": pixels.share(np.concatenate(charge)),
        }
    )
