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
POWERS = 3
"""Of distances, in correlations: one half, one, two."""
CORRELATED = 40
"""Pixels that correlations are made of: the hardest."""
TURNS = 4
"""Angles at which a jet is looked at, each also mirrored, when it is judged: the mean of all says less by chance."""
LARGEST = 8
"""Shares of the hardest pixels that are shapes."""
SHAPES = 11 + len(RINGS) - 1 + LARGEST + 6 * POWERS
STEPS, REACH = 8, 2.0
"""A shape, brought to mean 0 and deviation 1, climbs so many steps between minus and plus REACH (`stairs`)."""
NOISE = 0.1
"""Deviations by which shapes are smeared in training."""
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
        angle = torch.rand((len(self.value), 1), device=self.value.device) * (2 * math.pi)
        side = torch.where(torch.rand_like(angle) < 0.5, -1.0, 1.0)
        row, column = (x + 0.3 * torch.randn_like(x) for x in (self.row, self.column))
        turned = self._replace(row=row, column=column).turned(angle.cos(), angle.sin(), side)
        lost = torch.rand_like(self.value) < 0.05
        lost[:, :4] = False  # not the hardest, of which a jet has but a few
        filled = self.filled & ~lost
        value = self.value * torch.exp(0.05 * torch.randn_like(self.value)) * filled
        return turned._replace(value=value, filled=filled)

    def turned(self, cosine: Tensor | float, sine: Tensor | float, side: Tensor | float) -> Pixels:
        """By an angle about the middle, and mirrored where `side` is -1."""
        row, column = self.row * cosine - self.column * sine, self.row * sine + self.column * cosine
        return self._replace(row=row, column=column * side)


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
    share = share[:, :CORRELATED]
    apart = [x.unsqueeze(2) - x.unsqueeze(1) for x in (pixels.row[:, :CORRELATED], pixels.column[:, :CORRELATED])]
    distance, pair = torch.hypot(*apart), share.unsqueeze(2) * share.unsqueeze(1)
    found = []
    for near in (distance.sqrt(), distance, distance**2):
        chain = near @ (share.unsqueeze(2) * near)
        two, three = (pair * near).sum(dim=(1, 2)), (pair * near * chain).sum(dim=(1, 2))
        four = (pair * chain * chain).sum(dim=(1, 2))
        base = two.clamp(min=1e-6)
        found += [two, three, four, three / base**3, three / base**2, four / base**4]
    return torch.stack(found, dim=1)


def stairs(values: Tensor) -> Tensor:
    """(jets, n) to (jets, n * (STEPS + 1)): how far up each step a value is, from 0 to 1, and the value itself.

    A network cuts on such columns as trees do; on the values alone it stayed behind them.
    """
    width = 2 * REACH / STEPS
    feet = torch.arange(STEPS, device=values.device, dtype=values.dtype) * width - REACH
    climbed = ((values.unsqueeze(2) - feet) / width).clamp(0, 1)
    return torch.cat([climbed.flatten(1), values.clamp(-2 * REACH, 2 * REACH)], dim=1)


class PixelCloud(nn.Module):
    """Every pixel through one small network; sums over pixels and the shapes through another."""

    def __init__(self, classes: int, settings: ImageNetwork) -> None:
        super().__init__()
        width, dropout = 4 * settings.width, settings.dropout
        self.most, self.augment = settings.most, settings.augment
        self.each = nn.Sequential(nn.Linear(7, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.norm = nn.BatchNorm1d(SHAPES, affine=False)
        self.head = nn.Sequential(
            nn.Linear(2 * width + SHAPES * (STEPS + 1), 64),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(64, 64),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(64, classes),
        )

    def forward(self, image: Tensor) -> Tensor:
        pixels, total = Pixels.of(image, self.most), image.sum(dim=(1, 2))
        whole = self.norm(shapes(pixels, total))
        if self.training and self.augment:
            return self._logits(pixels.varied(), stairs(whole + NOISE * torch.randn_like(whole)))
        whole = stairs(whole)
        if not self.augment:
            return self._logits(pixels, whole)
        angles = [2 * math.pi * turn / TURNS for turn in range(TURNS)]
        seen = [pixels.turned(math.cos(a), math.sin(a), side) for a in angles for side in (1.0, -1.0)]
        return torch.stack([self._logits(each, whole) for each in seen]).mean(dim=0)

    def _logits(self, pixels: Pixels, whole: Tensor) -> Tensor:
        share, (down, across) = pixels.share, pixels.centred()
        places = [x / UNIT for x in (pixels.row, pixels.column, down, across, torch.hypot(down, across))]
        hard = [torch.log(pixels.value + 1e-2) / 2, torch.log(share + 1e-4) / 2 + 2]
        found = self.each(torch.stack([*places, *hard], dim=2)) * pixels.filled.unsqueeze(2)
        sums = [found.sum(dim=1) / self.most, (found * share.unsqueeze(2)).sum(dim=1)]
        logits: Tensor = self.head(torch.cat([*sums, whole], dim=1))
        return logits
