"""A network for images that are mostly empty: their filled pixels as a set, and shapes of the whole.

A few thousand images teach convolutions little. A set can be turned by any angle without a loss, and the shapes
(moments, rings, correlations of two to four pixels) hold what is known of jets beforehand.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clew.recipes.jets.settings import ImageNetwork

RINGS = (0.0, 1.0, 2.0, 3.0, 5.0, 7.0, 9.0, 12.0, 1e6)
"""Distances from the centre, in pixels."""
POWERS = (0.5, 1.0, 2.0)
"""Of distances, in correlations."""
LARGEST = 8
"""Shares of the hardest pixels that are shapes."""
SHAPES = 11 + len(RINGS) - 1 + LARGEST + 6 * len(POWERS)
UNIT = 5.0
"""Pixels: what brings places to order one."""


class Pixels(NamedTuple):
    """The hardest pixels of each image: value, place from the middle (in pixels), whether there is one."""

    value: Tensor
    row: Tensor
    column: Tensor
    filled: Tensor

    @classmethod
    def of(cls, image: Tensor, most: int) -> Pixels:
        """From images (jets, rows, columns), no more than `most` of each."""
        rows, columns = image.shape[1:]
        value, place = image.flatten(1).topk(min(most, rows * columns), dim=1)
        row, column = place // columns, place % columns
        return cls(value, row - (rows - 1) / 2, column - (columns - 1) / 2, value > 0)

    @property
    def share(self) -> Tensor:
        """Of the sum of the image."""
        return self.value / self.value.sum(dim=1, keepdim=True).clamp(min=1e-6)

    def centred(self) -> tuple[Tensor, Tensor]:
        """Places from the centre of the image's weight."""
        share = self.share
        down, across = ((share * x).sum(dim=1, keepdim=True) for x in (self.row, self.column))
        return self.row - down, self.column - across

    def varied(self) -> Pixels:
        """What might as well have been seen: turned, mirrored, smeared by parts of a pixel and a few percent."""
        jets = len(self.value)
        angle = torch.rand((jets, 1), device=self.value.device) * (2 * math.pi)
        side = torch.where(torch.rand_like(angle) < 0.5, -1.0, 1.0)
        row, column = (x + 0.3 * torch.randn_like(x) for x in (self.row, self.column))
        turned = row * angle.cos() - column * angle.sin(), (row * angle.sin() + column * angle.cos()) * side
        lost = torch.rand_like(self.value) < 0.05
        lost[:, :4] = False  # not the hardest, of which a jet has but a few
        filled = self.filled & ~lost
        return Pixels(self.value * torch.exp(0.05 * torch.randn_like(self.value)) * filled, *turned, filled)


def shapes(pixels: Pixels, total: Tensor) -> Tensor:
    """(jets, SHAPES): logarithms of what describes an image as a whole; the same however it is turned."""
    share, (down, across) = pixels.share, pixels.centred()
    away = torch.hypot(down, across)

    def mean(values: Tensor) -> Tensor:
        return (share * values).sum(dim=1)

    a, b, c = mean(down**2), mean(across**2), mean(down * across)
    half = ((a - b) ** 2 / 4 + c**2).clamp(min=1e-12).sqrt()
    major, minor = (a + b) / 2 + half, ((a + b) / 2 - half).clamp(min=1e-6)
    shift = torch.hypot(mean(pixels.row), mean(pixels.column))
    whole = [total, pixels.filled.sum(dim=1).to(share.dtype), shift, major, minor, minor / major.clamp(min=1e-6)]
    whole += [total * (a + b).sqrt(), mean(share), mean(away), mean(away.sqrt()), mean(away**4)]
    whole += [mean(((away >= low) & (away < high)).to(share.dtype)) for low, high in pairwise(RINGS)]
    hardest = nn.functional.pad(share, (0, max(0, LARGEST - share.shape[1])))[:, :LARGEST]
    found = torch.cat([torch.stack(whole, dim=1), hardest, _correlations(pixels, share)], dim=1)
    return torch.log(found.abs() + 1e-4)


def _correlations(pixels: Pixels, share: Tensor) -> Tensor:
    """Energy correlations of two, three and four pixels, and their ratios, for every power of the distance."""
    apart = [x.unsqueeze(2) - x.unsqueeze(1) for x in (pixels.row, pixels.column)]
    distance, pair = torch.hypot(*apart), share.unsqueeze(2) * share.unsqueeze(1)
    found = []
    for power in POWERS:
        near = distance**power
        chain = near @ (share.unsqueeze(2) * near)
        two, three = (pair * near).sum(dim=(1, 2)), (pair * near * chain).sum(dim=(1, 2))
        four = (pair * chain * chain).sum(dim=(1, 2))
        base = two.clamp(min=1e-6)
        found += [two, three, four, three / base**3, three / base**2, four / base**4]
    return torch.stack(found, dim=1)


class PixelCloud(nn.Module):
    """Every pixel through one small network; sums over pixels and the shapes through another."""

    def __init__(self, classes: int, settings: ImageNetwork) -> None:
        super().__init__()
        width, dropout = 4 * settings.width, settings.dropout
        self.most, self.augment = settings.most, settings.augment
        self.each = nn.Sequential(nn.Linear(7, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.norm = nn.BatchNorm1d(SHAPES, affine=False)
        self.head = nn.Sequential(
            nn.Linear(2 * width + SHAPES, 64),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(64, 64),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(64, classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        pixels, total = Pixels.of(image, self.most), image.sum(dim=(1, 2))
        if self.training and self.augment:
            pixels = pixels.varied()
        share, (down, across) = pixels.share, pixels.centred()
        places = [x / UNIT for x in (pixels.row, pixels.column, down, across, torch.hypot(down, across))]
        hard = [torch.log(pixels.value + 1e-2) / 2, torch.log(share + 1e-4) / 2 + 2]
        found = self.each(torch.stack([*places, *hard], dim=2)) * pixels.filled.unsqueeze(2)
        sums = [found.sum(dim=1) / self.most, (found * share.unsqueeze(2)).sum(dim=1)]
        whole = self.norm(shapes(pixels, total)).clamp(-4, 4)
        logits: Tensor = self.head(torch.cat([*sums, whole], dim=1))
        return logits
