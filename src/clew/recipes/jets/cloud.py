"""A network for images that are mostly empty: it uses the filled pixels as a set, and shape variables of the image.

A few thousand images are not enough for convolutions. A set can be rotated by any angle without loss, and the shape
variables (moments, rings, correlations of two to four pixels) contain prior knowledge about jets.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clew.recipes.jets.settings import JetImagesNetworkConfig

RINGS = (0.0, 1.0, 2.0, 3.0, 5.0, 7.0, 9.0, 12.0, 1e6)
"""Edges of rings around the centre, in pixels."""
POWERS = 3
"""Number of powers of the distance in correlations: one half, one, two."""
CORRELATED = 40
"""Number of pixels in correlations; those with the highest values."""
EVALUATION_ANGLES = 4
"""Number of angles, each also mirrored, at which a jet is evaluated. The mean of all has a smaller random error."""
LARGEST = 8
"""Number of highest pixels whose shares are shape variables."""
SHAPES = 11 + len(RINGS) - 1 + LARGEST + 6 * POWERS
STEPS, REACH = 8, 2.0
"""Number of steps between -REACH and REACH, in standard deviations of a shape variable (`stairs`)."""
NOISE = 0.1
"""Smearing of shape variables in training, in standard deviations."""
UNIT = 5.0
"""Unit of positions, in pixels."""


class CloudPixels(NamedTuple):
    """The highest pixels of each image: value, position from the centre (in pixels), and whether the pixel is
    filled."""

    value: Tensor
    row: Tensor
    column: Tensor
    filled: Tensor

    @classmethod
    def of(cls, image: Tensor, count: int) -> CloudPixels:
        """The `count` highest pixels of images (jets, rows, columns)."""
        rows, columns = image.shape[1:]
        value, place = image.flatten(1).topk(min(count, rows * columns), dim=1)
        row, column = place // columns, place % columns
        return cls(value, row - (rows - 1) / 2, column - (columns - 1) / 2, value > 0)

    @property
    def share(self) -> Tensor:
        """Share of each pixel in the sum of the image."""
        return self.value / self.value.sum(dim=1, keepdim=True).clamp(min=1e-6)

    def centred(self) -> tuple[Tensor, Tensor]:
        """Positions relative to the weighted centre of the image."""
        share = self.share
        down, across = ((share * x).sum(dim=1, keepdim=True) for x in (self.row, self.column))
        return self.row - down, self.column - across

    def augmented(self) -> CloudPixels:
        """A random variation: rotated, mirrored, positions and values smeared, and 5% of the pixels removed."""
        angle = torch.rand((len(self.value), 1), device=self.value.device) * (2 * math.pi)
        side = torch.where(torch.rand_like(angle) < 0.5, -1.0, 1.0)
        row, column = (x + 0.3 * torch.randn_like(x) for x in (self.row, self.column))
        turned = self._replace(row=row, column=column).rotated(angle.cos(), angle.sin(), side)
        lost = torch.rand_like(self.value) < 0.05
        lost[:, :4] = False  # the highest pixels are never removed
        filled = self.filled & ~lost
        value = self.value * torch.exp(0.05 * torch.randn_like(self.value)) * filled
        return turned._replace(value=value, filled=filled)

    def rotated(self, cosine: Tensor | float, sine: Tensor | float, side: Tensor | float) -> CloudPixels:
        """Rotated by an angle around the centre, and mirrored where `side` is -1."""
        row, column = self.row * cosine - self.column * sine, self.row * sine + self.column * cosine
        return self._replace(row=row, column=column * side)


def shapes(pixels: CloudPixels, total: Tensor) -> Tensor:
    """(jets, SHAPES): logarithms of shape variables of the image. They do not change with rotations."""
    share, (down, across) = pixels.share, pixels.centred()
    away = torch.hypot(down, across)

    def mean(values: Tensor) -> Tensor:
        return (share * values).sum(dim=1)

    a, b, c = mean(down**2), mean(across**2), mean(down * across)
    half = ((a - b) ** 2 / 4 + c**2).clamp(min=1e-12).sqrt()
    major, minor = (a + b) / 2 + half, ((a + b) / 2 - half).clamp(min=1e-6)
    shift = torch.hypot(mean(pixels.row), mean(pixels.column))
    features = [total, pixels.filled.sum(dim=1).to(share.dtype), shift, major, minor, minor / major.clamp(min=1e-6)]
    features += [total * (a + b).sqrt(), mean(share), mean(away), mean(away.sqrt()), mean(away**4)]
    features += [mean(((away >= low) & (away < high)).to(share.dtype)) for low, high in pairwise(RINGS)]
    hardest = nn.functional.pad(share, (0, max(0, LARGEST - share.shape[1])))[:, :LARGEST]
    all_features = torch.cat([torch.stack(features, dim=1), hardest, _correlations(pixels, share)], dim=1)
    return torch.log(all_features.abs() + 1e-4)


def _correlations(pixels: CloudPixels, share: Tensor) -> Tensor:
    """Energy correlations of two, three and four pixels, and their ratios, for every power of the distance."""
    share = share[:, :CORRELATED]
    apart = [x.unsqueeze(2) - x.unsqueeze(1) for x in (pixels.row[:, :CORRELATED], pixels.column[:, :CORRELATED])]
    distance, pair = torch.hypot(*apart), share.unsqueeze(2) * share.unsqueeze(1)
    values = []
    for power in (distance.sqrt(), distance, distance**2):
        chain = power @ (share.unsqueeze(2) * power)
        two, three = (pair * power).sum(dim=(1, 2)), (pair * power * chain).sum(dim=(1, 2))
        four = (pair * chain * chain).sum(dim=(1, 2))
        base = two.clamp(min=1e-6)
        values += [two, three, four, three / base**3, three / base**2, four / base**4]
    return torch.stack(values, dim=1)


def stairs(values: Tensor) -> Tensor:
    """(jets, n) to (jets, n * (STEPS + 1)): the position of a value in each step, from 0 to 1, and the value itself.

    A network can make cuts on such inputs, as decision trees do. With the values alone it was worse than trees.
    """
    width = 2 * REACH / STEPS
    feet = torch.arange(STEPS, device=values.device, dtype=values.dtype) * width - REACH
    climbed = ((values.unsqueeze(2) - feet) / width).clamp(0, 1)
    return torch.cat([climbed.flatten(1), values.clamp(-2 * REACH, 2 * REACH)], dim=1)


class PixelCloud(nn.Module):
    """A small network for every pixel; a second one for the sums over pixels and the shape variables."""

    def __init__(self, classes: int, settings: JetImagesNetworkConfig) -> None:
        super().__init__()
        width, dropout = 4 * settings.width, settings.dropout
        self.max_pixels, self.augment = settings.max_pixels, settings.augment
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
        pixels, total = CloudPixels.of(image, self.max_pixels), image.sum(dim=(1, 2))
        shape_features = self.norm(shapes(pixels, total))
        if self.training and self.augment:
            return self._logits(pixels.augmented(), stairs(shape_features + NOISE * torch.randn_like(shape_features)))
        shape_features = stairs(shape_features)
        if not self.augment:
            return self._logits(pixels, shape_features)
        angles = [2 * math.pi * turn / EVALUATION_ANGLES for turn in range(EVALUATION_ANGLES)]
        views = [pixels.rotated(math.cos(a), math.sin(a), side) for a in angles for side in (1.0, -1.0)]
        return torch.stack([self._logits(view, shape_features) for view in views]).mean(dim=0)

    def _logits(self, pixels: CloudPixels, shape_features: Tensor) -> Tensor:
        share, (down, across) = pixels.share, pixels.centred()
        places = [x / UNIT for x in (pixels.row, pixels.column, down, across, torch.hypot(down, across))]
        hard = [torch.log(pixels.value + 1e-2) / 2, torch.log(share + 1e-4) / 2 + 2]
        embedded = self.each(torch.stack([*places, *hard], dim=2)) * pixels.filled.unsqueeze(2)
        sums = [embedded.sum(dim=1) / self.max_pixels, (embedded * share.unsqueeze(2)).sum(dim=1)]
        logits: Tensor = self.head(torch.cat([*sums, shape_features], dim=1))
        return logits
