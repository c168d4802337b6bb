"""Continuations of tracks for TrackNET: lines through two hits, and the hits of later stations near these lines."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TrackLines:
    """Lines between hits of a batch. `place` (hits, 3) holds w, u, v (see `geometry.HitCoordinates`)."""

    place: Tensor
    station: Tensor
    period: float

    def delta_u(self, a: Tensor, b: Tensor) -> Tensor:
        """u of b minus u of a; for angles the difference of smallest size."""
        difference = self.place[b, 1] - self.place[a, 1]
        return wrap_angle(difference) if self.period else difference

    def delta_w(self, a: Tensor, b: Tensor) -> Tensor:
        """w of b minus w of a, never exactly 0."""
        difference = self.place[b, 0] - self.place[a, 0]
        return torch.where(difference.abs() < 1e-6, torch.full_like(difference, 1e-6), difference)

    def line_features(self, previous: Tensor | None, hit: Tensor) -> Tensor:
        """(hits, 3): du/dw, dv/dw, and v at depth 0, of the line from the previous hit, or from the origin if None."""
        w, _, v = self.place[hit].unbind(dim=1)
        if previous is None:
            zero = torch.zeros_like(w)
            return torch.stack([zero, v / w.clamp(min=1e-6), zero], dim=1)
        dw = self.delta_w(previous, hit)
        slope = (v - self.place[previous, 2]) / dw
        return torch.stack([self.delta_u(previous, hit) / dw, slope, v - slope * w], dim=1)

    def residual(self, a: Tensor, b: Tensor, hit: Tensor) -> Tensor:
        """(hits, 2): distance in u and v between a hit and the line through a and b."""
        share = self.delta_w(b, hit) / self.delta_w(a, b)
        u = self.delta_u(b, hit) - self.delta_u(a, b) * share
        v = self.place[hit, 2] - self.place[b, 2] - (self.place[b, 2] - self.place[a, 2]) * share
        return torch.stack([wrap_angle(u) if self.period else u, v], dim=1)


@dataclass(frozen=True)
class HitIndex:
    """All hits of a batch, sorted by event, station and u. A window in u is a slice of the sorted array."""

    lines: TrackLines
    depths: Tensor
    key: Tensor
    hit: Tensor
    stride: float

    @classmethod
    def of(cls, lines: TrackLines, events: Tensor, stations: tuple[float, ...]) -> HitIndex:
        """Sort the hits. If u is periodic, every hit is also entered one period below and one above."""
        depths = lines.place.new_tensor(stations)
        hit, u = torch.arange(len(events), device=events.device), lines.place[:, 1].double()
        if lines.period:
            hit, u = hit.repeat(3), torch.cat([u, u + lines.period, u - lines.period])
        span = float(u.abs().max()) if len(u) else 1.0
        stride = 8 * span + 8
        key = (events[hit] * len(stations) + lines.station[hit]).double() * stride + u
        order = torch.argsort(key, stable=True)
        return cls(lines, depths, key[order], hit[order], stride)

    def hits_near(
        self, a: Tensor, b: Tensor, events: Tensor, crossed: int, shift: Tensor, reach: Tensor
    ) -> tuple[Tensor, Tensor]:
        """All pairs (row, hit) where u of the hit is within `reach` of the line through a and b, moved by `shift`.

        The hit is `crossed` stations after b. Rows after the last station have no hits.
        """
        target = self.lines.station[b] + crossed
        valid = (target < len(self.depths)) & (reach > 0)
        depth = self.depths[target.clamp(max=len(self.depths) - 1)]
        share = (depth - self.lines.place[b, 0]) / self.lines.delta_w(a, b)
        centre = self.lines.place[b, 1] + self.lines.delta_u(a, b) * share + shift
        centre = (wrap_angle(centre) if self.lines.period else centre).double().clamp(-2 * self.stride, 2 * self.stride)
        # hits of a station differ a little in depth, so the window is wider; the ellipse decides later
        half_width = (1.1 * reach + 1e-6).double().clamp(max=math.pi * 0.999 if self.lines.period else self.stride / 4)
        base = (events[b] * len(self.depths) + target).double() * self.stride
        limit = self.stride / 2 - 1
        first = torch.searchsorted(self.key, base + (centre - half_width).clamp(-limit, limit))
        last = torch.searchsorted(self.key, base + (centre + half_width).clamp(-limit, limit), right=True)
        return self._slices(first, torch.where(valid, (last - first).clamp(min=0), 0))

    def _slices(self, first: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        row = torch.repeat_interleave(counts)
        start = torch.cumsum(counts, 0) - counts
        place = torch.arange(len(row), device=row.device) - start[row] + first[row]
        return row, self.hit[place]


def wrap_angle(angle: Tensor) -> Tensor:
    """An angle moved into [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def inside_ellipse(off: Tensor, centre: Tensor, radius: Tensor) -> Tensor:
    """Whether points are inside ellipses; all arguments have shape (n, 2)."""
    return (((off - centre) / radius) ** 2).sum(dim=1) <= 1


def best_per_group(group: Tensor, score: Tensor, count: int) -> Tensor:
    """Indices of the `count` members of each group with the best scores, in rising order."""
    order = torch.argsort(score, descending=True, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    ordered = group[order]
    rank = torch.arange(len(order), device=order.device) - torch.searchsorted(ordered, ordered)
    return order[rank < count].sort().values
