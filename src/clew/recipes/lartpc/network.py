"""The network of the study: four blocks of convolution, ELU and pooling by 5, and two dense layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from clew.recipes.lartpc import ops
from clew.recipes.lartpc.columns import CLASSES

CHANNELS = (10, 64, 128, 256)
HIDDEN = 32


class ParticleNet(nn.Module):
    """Lists of pixels in, one logit a class out; at 3600 x 3600 it has 1,245,705 parameters.

    Images are worked on where there is something to see (`ops`); the results are those of `dense`.
    """

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width
        self.blocks = nn.ModuleList(
            nn.Conv2d(inputs, outputs, 5, padding=2) for inputs, outputs in zip((1, *CHANNELS), CHANNELS, strict=False)
        )
        flat = CHANNELS[-1] * (height // 5 ** len(CHANNELS)) * (width // 5 ** len(CHANNELS))
        self.hidden, self.last = nn.Linear(flat, HIDDEN), nn.Linear(HIDDEN, len(CLASSES))

    def forward(self, index: Tensor, charge: Tensor, offsets: Tensor) -> Tensor:
        first, *others = (block for block in self.blocks)
        fill = ops.background(None, *_parameters(first))
        x, _, active = ops.pixels(index, charge, offsets, fill, *_parameters(first), self.height, self.width)
        for block in others:
            fill = ops.background(fill, *_parameters(block))
            x, _, active = ops.cells(x, active, fill, *_parameters(block))
        return self._classify(x.permute(0, 3, 1, 2))

    def dense(self, image: Tensor) -> Tensor:
        """The same as plain PyTorch does it, from images (events, 1, height, width): the yardstick."""
        for block in self.blocks:
            image = f.max_pool2d(f.elu(block(image)), ops.POOL)
        return self._classify(image)

    def _classify(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(f.elu(self.hidden(x.flatten(1))))
        return logits


def _parameters(block: Any) -> tuple[Tensor, Tensor]:
    return block.weight, block.bias


def images(index: Tensor, charge: Tensor, offsets: Tensor, height: int, width: int) -> Tensor:
    """Lists of pixels as dense images (events, 1, height, width)."""
    from clew.recipes.lartpc.kernels.portable import image

    return image(index, charge, offsets, height, width).view(-1, 1, height, width)


