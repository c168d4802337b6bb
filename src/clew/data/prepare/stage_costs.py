"""Whether it pays to store the result of a stage: time to compute it again against time to write and read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean

from clew.data.prepare.config import KeepRule

MARGIN = 3.0
"""A result is stored if computing it takes this many times as long as writing and reading it: most results are never
needed again."""
_LATENCY = 0.002
"""Seconds to write or read a result of no size."""


@dataclass(frozen=True)
class StageCost:
    """What one stage of a piece took, or the mean of several pieces."""

    seconds: float
    """Time to compute it from the stage before."""
    bytes: float
    """Size of its result."""
    storage_seconds: float
    """Expected time to write and read its result."""
    stored: float
    """Whether the result was stored; the share of pieces."""


@dataclass
class _Rate:
    """Measured seconds per byte. It starts as 400 MB/s, with a weight of 16 MB."""

    bytes: float = 16e6
    seconds: float = 0.04

    def add(self, size: int, seconds: float) -> None:
        self.bytes += size
        self.seconds += max(seconds - _LATENCY, 0.0)

    def time(self, size: int) -> float:
        return _LATENCY + size * self.seconds / self.bytes


@dataclass
class StorageSpeed:
    """How fast results are written to a cache and read from it, as this process has measured it."""

    write: _Rate = field(default_factory=_Rate)
    read: _Rate = field(default_factory=_Rate)

    def round_trip(self, size: int) -> float:
        """Return the expected seconds to write and read a result."""
        return self.write.time(size) + self.read.time(size)


@cache
def storage_speed(folder: Path) -> StorageSpeed:
    """Return the speed of a cache. There is one object per process and cache."""
    return StorageSpeed()


def is_worth_storing(rule: KeepRule, seconds: float, round_trip: float, *, needed_again: bool = False) -> bool:
    """Return whether a result is stored.

    Args:
        rule: The setting `keep` of the stage.
        seconds: Time to compute the result again, from the last stored one.
        round_trip: Expected seconds to write and read it.
        needed_again: Whether the same preparation needs it again, for example after a pass that fits a transform.

    Example:
        >>> is_worth_storing("auto", seconds=1.0, round_trip=0.1), is_worth_storing("auto", 0.1, 0.1)
        (True, False)
    """
    if rule != "auto":
        return rule == "always"
    return seconds > round_trip * (1.0 if needed_again else MARGIN)


def mean_costs(pieces: Iterable[Mapping[str, StageCost]]) -> dict[str, StageCost]:
    """Return the mean cost of each stage over the pieces that computed it."""
    costs: dict[str, list[StageCost]] = {}
    for piece in pieces:
        for name, cost in piece.items():
            costs.setdefault(name, []).append(cost)
    return {
        name: StageCost(
            seconds=fmean(cost.seconds for cost in each),
            bytes=fmean(cost.bytes for cost in each),
            storage_seconds=fmean(cost.storage_seconds for cost in each),
            stored=fmean(cost.stored for cost in each),
        )
        for name, each in costs.items()
    }
