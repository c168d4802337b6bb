"""Where a track goes on: straight lines through two hits, and the hits of the next station near their continuation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Lines:
    """Lines between hits of a batch; `place` (hits, 3) is depth w, bending u, straight v; `station` of each hit."""

    place: Tensor
    station: Tensor
    period: float

    def across(self, a: Tensor, b: Tensor) -> Tensor:
        """u of b minus u of a, the short way round."""
        difference = self.place[b, 1] - self.place[a, 1]
        return wrap(difference) if self.period else difference

    def deeper(self, a: Tensor, b: Tensor) -> Tensor:
        """w of b minus w of a, kept away from 0."""
        difference = self.place[b, 0] - self.place[a, 0]
        return torch.where(difference.abs() < 1e-6, torch.full_like(difference, 1e-6), difference)

    def seen(self, before: Tensor | None, hit: Tensor) -> Tensor:
        """(hits, 3): turn du/dw, slope dv/dw, and v at depth 0, of the line from the hit before, or from the origin."""
        w, _, v = self.place[hit].unbind(dim=1)
        if before is None:
            zero = torch.zeros_like(w)
            return torch.stack([zero, v / w.clamp(min=1e-6), zero], dim=1)
        dw = self.deeper(before, hit)
        slope = (v - self.place[before, 2]) / dw
        return torch.stack([self.across(before, hit) / dw, slope, v - slope * w], dim=1)

    def off(self, a: Tensor, b: Tensor, hit: Tensor) -> Tensor:
        """(hits, 2): how far a hit lies from the line through a and b, in u and v."""
        share = self.deeper(b, hit) / self.deeper(a, b)
        u = self.across(b, hit) - self.across(a, b) * share
        v = self.place[hit, 2] - self.place[b, 2] - (self.place[b, 2] - self.place[a, 2]) * share
        return torch.stack([wrap(u) if self.period else u, v], dim=1)


@dataclass(frozen=True)
class Board:
    """All hits of a batch sorted by event, station and u, so that a window of u is a slice."""

    lines: Lines
    depths: Tensor
    key: Tensor
    hit: Tensor
    stride: float

    @classmethod
    def of(cls, lines: Lines, events: Tensor, stations: tuple[float, ...]) -> Board:
        """Sort the hits; those near the seam stand there twice more, a turn away."""
        depths = lines.place.new_tensor(stations)
        hit, u = torch.arange(len(events), device=events.device), lines.place[:, 1].double()
        if lines.period:
            hit, u = hit.repeat(3), torch.cat([u, u + lines.period, u - lines.period])
        span = float(u.abs().max()) if len(u) else 1.0
        stride = 8 * span + 8
        key = (events[hit] * len(stations) + lines.station[hit]).double() * stride + u
        order = torch.argsort(key, stable=True)
        return cls(lines, depths, key[order], hit[order], stride)

    def near(
        self, a: Tensor, b: Tensor, events: Tensor, crossed: int, shift: Tensor, reach: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Every (row, hit) where u lies within `reach` of the continuation of a-b, moved by `shift`.

        The hit is on the station `crossed` behind that of b; rows past the last station have none.
        """
        target = self.lines.station[b] + crossed
        there = (target < len(self.depths)) & (reach > 0)
        depth = self.depths[target.clamp(max=len(self.depths) - 1)]
        share = (depth - self.lines.place[b, 0]) / self.lines.deeper(a, b)
        centre = self.lines.place[b, 1] + self.lines.across(a, b) * share + shift
        centre = (wrap(centre) if self.lines.period else centre).double().clamp(-2 * self.stride, 2 * self.stride)
        # a station is not quite at one depth: look a little wider, the ellipse decides
        wide = (1.1 * reach + 1e-6).double().clamp(max=math.pi * 0.999 if self.lines.period else self.stride / 4)
        middle = (events[b] * len(self.depths) + target).double() * self.stride
        limit = self.stride / 2 - 1
        first = torch.searchsorted(self.key, middle + (centre - wide).clamp(-limit, limit))
        last = torch.searchsorted(self.key, middle + (centre + wide).clamp(-limit, limit), right=True)
        return self._slices(first, torch.where(there, (last - first).clamp(min=0), 0))

    def _slices(self, first: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        row = torch.repeat_interleave(counts)
        begin = torch.cumsum(counts, 0) - counts
        place = torch.arange(len(row), device=row.device) - begin[row] + first[row]
        return row, self.hit[place]


def wrap(angle: Tensor) -> Tensor:
    """An angle, or a difference of two, into [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def inside(off: Tensor, centre: Tensor, radius: Tensor) -> Tensor:
    """Whether places lie in ellipses; all (n, 2)."""
    return (((off - centre) / radius) ** 2).sum(dim=1) <= 1


def best(group: Tensor, score: Tensor, most: int) -> Tensor:
    """The numbers of the `most` best-scored members of each group, in their old order."""
    order = torch.argsort(score, descending=True, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    ordered = group[order]
    place = torch.arange(len(order), device=order.device) - torch.searchsorted(ordered, ordered)
    return order[place < most].sort().values
