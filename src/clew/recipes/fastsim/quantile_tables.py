"""Quantile functions of a value by group and condition, as tables: maps to a standard normal latent and back."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from clew.recipes.fastsim.noise import normal_probability, normal_quantile

MAX_LATENT = 4.5
"""Latents of values are limited to this range on both sides."""
MIN_PROBABILITY = 1e-7


class QuantileTable(nn.Module):
    """Quantile functions, interpolated linearly in the condition. Knots have equal distances in the normal latent.

    Args:
        groups: Number of groups, each with quantile functions of its own.
        bins: Number of bins of the condition.
        limits: Condition at the first and at the last bin. `set_limits` changes them.
    """

    table: Tensor
    limits: Tensor
    REACH, KNOTS = 3.0, 25

    def __init__(self, groups: int, bins: int, limits: tuple[float, float]) -> None:
        super().__init__()
        self.bins = bins
        self.register_buffer("limits", torch.tensor(limits))
        knots = torch.linspace(-self.REACH, self.REACH, self.KNOTS)
        self.register_buffer("table", knots.expand(groups, bins, -1).clone())

    def set_limits(self, low: float, high: float) -> None:
        """Set the condition at the first and at the last bin."""
        self.limits.copy_(torch.tensor([low, max(high, low + 1e-3)]))

    def fit(self, value: Tensor, condition: Tensor, group: Tensor, *, min_entries: int = 150) -> None:
        """Measure the quantile functions. Cells with fewer than `min_entries` values copy the nearest bin.

        Args:
            value: Values, (n,).
            condition: Their conditions, (n,).
            group: Their groups, integers (n,).
            min_entries: Minimum number of values per cell.
        """
        groups = len(self.table)
        cell = group.long() * self.bins + self._position(condition, self.bins - 1).round().long()
        value, order = value.sort()
        cell, order = cell[order].sort(stable=True)
        value = value[order]
        count = torch.bincount(cell, minlength=groups * self.bins)
        start = count.cumsum(0) - count
        latent = torch.linspace(-self.REACH, self.REACH, self.KNOTS, dtype=torch.float64, device=value.device)
        share = normal_probability(latent)
        place = start[:, None] + share * (count[:, None] - 1).clamp(min=0)
        below = place.floor().long().clamp(0, len(value) - 1)
        above = torch.minimum(below + 1, (start + count - 1).clamp(min=0)[:, None])
        table = torch.lerp(value[below], value[above], (place - below).to(value.dtype))
        table = _fill_cells(table.view(groups, self.bins, -1), count.view(groups, self.bins), min_entries)
        rise = torch.arange(self.KNOTS, device=value.device) * 1e-4  # equal knots have no inverse
        self.table.copy_(torch.cummax(table, -1).values + rise)

    def rows(self, condition: Tensor, group: Tensor) -> Tensor:
        """Return the knots for each condition: (..., KNOTS). `group` has the shape of `condition`, or broadcasts."""
        position = self._position(condition, self.bins - 1.0001)
        left = position.floor()
        flat, index = self.table.reshape(-1, self.KNOTS), group * self.bins + left.long()
        return torch.lerp(flat[index], flat[index + 1], (position - left).unsqueeze(-1))

    def to_latent(self, value: Tensor, rows: Tensor) -> Tensor:
        """Return the latents of values (..., m) with the knots `rows` (..., KNOTS)."""
        index = (value.unsqueeze(-1) > rows.unsqueeze(-2)).sum(-1).clamp(1, self.KNOTS - 1)
        lower, upper = rows.gather(-1, index - 1), rows.gather(-1, index)
        latent = -self.REACH + self._step * (index - 1 + (value - lower) / (upper - lower))
        return latent.clamp(-MAX_LATENT, MAX_LATENT)

    def to_value(self, latent: Tensor, rows: Tensor) -> Tensor:
        """Return the values of latents (..., m): the inverse of `to_latent`."""
        place = (latent.clamp(-MAX_LATENT, MAX_LATENT) + self.REACH) / self._step
        index = place.floor().long().clamp(0, self.KNOTS - 2)
        lower, upper = rows.gather(-1, index), rows.gather(-1, index + 1)
        return lower + (place - index) * (upper - lower)

    @property
    def _step(self) -> float:
        return 2 * self.REACH / (self.KNOTS - 1)

    def _position(self, condition: Tensor, last: float) -> Tensor:
        low, high = self.limits.unbind()
        return ((condition - low) / (high - low) * (self.bins - 1)).clamp(0.0, last)


def _fill_cells(table: Tensor, count: Tensor, min_entries: int) -> Tensor:
    """Copy the nearest bin of the group into cells with few entries. The largest cell of a group always counts."""
    bins = table.shape[1]
    good = (count >= min_entries).scatter(1, count.argmax(1, keepdim=True), value=True)
    number = torch.arange(bins, device=table.device)
    distance = (number[:, None] - number).abs() + 2 * bins * (~good)[:, None, :]
    return table.gather(1, distance.argmin(2).unsqueeze(-1).expand_as(table))


def with_empty(latent: Tensor, lit: Tensor, empty: Tensor) -> Tensor:
    """Return latents of values that are 0 with a probability.

    Args:
        latent: Latents among the values above 0.
        lit: Whether the value is above 0.
        empty: Probability of 0.

    Returns:
        Standard normal numbers: above the quantile of `empty` for values above 0, below it, at random, for 0.
    """
    above = -normal_quantile(((1 - empty) * normal_probability(-latent)).clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY))
    below = normal_quantile((torch.rand_like(latent) * empty).clamp(MIN_PROBABILITY, 1 - 1e-6))
    return torch.where(lit, above, below).clamp(-MAX_LATENT - 1, MAX_LATENT + 1)


def without_empty(latent: Tensor, empty: Tensor) -> Tensor:
    """Return the latents among the values above 0: the inverse of `with_empty` where the value is not 0."""
    probability = normal_probability(-latent) / (1 - empty)
    return -normal_quantile(probability.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY))


def log_limits(low: float, high: float) -> tuple[float, float]:
    """Return the logarithms of two limits."""
    return math.log(low), math.log(high)
