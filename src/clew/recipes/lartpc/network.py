"""The network: four blocks of convolution, ELU and pooling by 5, and two dense layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.lartpc import ops
from clew.recipes.lartpc.augmentation import Augmentation
from clew.recipes.lartpc.columns import CLASSES
from clew.recipes.lartpc.kernels import portable

CHANNELS = (10, 64, 128, 256)
HIDDEN = 32


class WireImageNet(nn.Module):
    """Lists of pixels in, one logit per class out. At 3600 x 3600 it has 1,245,705 parameters.

    The kind `cells` computes only where pixels are (`ops`). The kind `dense` uses plain PyTorch on dense images. Both
    give the same results and have the same parameter names.

    Args:
        height: Rows of an image.
        width: Columns of an image.
        kind: `cells` or `dense`.
        dropout: Share of the inputs of the dense layers that are set to zero in training.
        augmentation: Changes the images in training.
    """

    def __init__(
        self,
        height: int,
        width: int,
        kind: str = "cells",
        *,
        dropout: float = 0.0,
        augmentation: Augmentation | None = None,
    ) -> None:
        super().__init__()
        self.height, self.width, self.kind = height, width, kind
        self.blocks = nn.ModuleList(
            nn.Conv2d(inputs, outputs, 5, padding=2) for inputs, outputs in itertools.pairwise((1, *CHANNELS))
        )
        cells = (height // ops.POOL ** len(CHANNELS)) * (width // ops.POOL ** len(CHANNELS))
        self.hidden, self.last = nn.Linear(CHANNELS[-1] * cells, HIDDEN), nn.Linear(HIDDEN, len(CLASSES))
        self.dropout, self.augmentation = nn.Dropout(dropout), augmentation

    def forward(self, index: Tensor, charge: Tensor, offsets: Tensor) -> Tensor:
        """Return logits (events, classes); see `ops.pixels` for the arguments."""
        if self.augmentation is not None:
            index, charge = self.augmentation(index, charge, offsets)
        if self.kind == "dense":
            return self.dense(dense_images(index, charge, offsets, self.height, self.width))
        if charge.is_cuda:
            charge = charge.to(_precision(charge))
        with torch.autocast(charge.device.type, enabled=False):  # the blocks choose their own precision
            x = self._cells(index, charge, offsets)
        if not torch.is_autocast_enabled(charge.device.type):
            x = x.to(self.hidden.weight.dtype)
        return self._classify(x.permute(0, 3, 1, 2))

    def _cells(self, index: Tensor, charge: Tensor, offsets: Tensor) -> Tensor:
        first, *others = (cast("tuple[Tensor, Tensor]", (each.weight, each.bias)) for each in self._convolutions())
        fill = ops.background(None, *first)
        x, _, active, _ = ops.pixels(index, charge, offsets, fill, *first, self.height, self.width)
        for block in others:
            if not ops.uses_cell_lists(x, block[0]):
                x = ops.dense_block(x, *block)[0]
                continue
            before, fill = fill, ops.background(fill, *block)
            x, _, active = ops.cells(x, active, before, fill, *block)
        cells: Tensor = x
        return cells

    def dense(self, image: Tensor) -> Tensor:
        """Compute the logits from images (events, 1, height, width) with plain PyTorch, as the reference."""
        for block in self._convolutions():
            image = f.max_pool2d(f.elu(block(image)), ops.POOL)
        return self._classify(image)

    def _convolutions(self) -> list[nn.Conv2d]:
        return list(cast("Iterable[nn.Conv2d]", self.blocks))

    def _classify(self, x: Tensor) -> Tensor:
        hidden = f.elu(self.hidden(self.dropout(x.flatten(1))))
        logits: Tensor = self.last(self.dropout(hidden))
        return logits


def _precision(charge: Tensor) -> torch.dtype:
    """Return the precision on CUDA: that of autocast; without gradients bf16, which the kernels on cells need."""
    if torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return charge.dtype if torch.is_grad_enabled() else torch.bfloat16


def dense_images(index: Tensor, charge: Tensor, offsets: Tensor, height: int, width: int) -> Tensor:
    """Return lists of pixels as dense images (events, 1, height, width)."""
    return portable.dense_images(index, charge, offsets, height, width).view(-1, 1, height, width)
