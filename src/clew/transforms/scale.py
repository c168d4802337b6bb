"""Scaling columns, with ranges or moments given by hand or fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from clew.errors import DataError
from clew.table import Ragged, Table
from clew.transforms.base import Fitted

Moments = dict[str, tuple[int, float, float]]


class MinMax(Fitted):
    """Columns to [-1, 1]: `low` to -1, `high` to 1. Values outside go beyond, they are not clipped."""

    kind: Literal["min_max"] = "min_max"
    columns: tuple[str, ...]
    low: dict[str, float] = {}
    high: dict[str, float] = {}

    @property
    def needs_fit(self) -> bool:
        return not set(self.columns) <= self.low.keys() & self.high.keys()

    def measure(self, events: Table) -> dict[str, tuple[float, float]]:
        arrays = {name: _values(events, name) for name in self.columns}
        return {name: (float(a.min()), float(a.max())) for name, a in arrays.items() if a.size}

    def fitted(self, parts: Sequence[dict[str, tuple[float, float]]]) -> Self:
        low, high = dict(self.low), dict(self.high)
        for name in self.columns:
            seen = [part[name] for part in parts if name in part]
            if not seen:
                raise DataError(f"min_max cannot be fitted: no values in column '{name}'")
            low.setdefault(name, min(pair[0] for pair in seen))
            high.setdefault(name, max(pair[1] for pair in seen))
        return self.model_copy(update={"low": low, "high": high})

    def __call__(self, events: Table) -> Table:
        def scale(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
            span = self.high[name] - self.low[name]
            return 2 * (values - self.low[name]) / (span or 1.0) - 1

        return _scaled(events, self.columns, scale)


class Standard(Fitted):
    """Columns to mean 0 and standard deviation 1. A constant column becomes 0."""

    kind: Literal["standard"] = "standard"
    columns: tuple[str, ...]
    mean: dict[str, float] = {}
    std: dict[str, float] = {}

    @property
    def needs_fit(self) -> bool:
        return not set(self.columns) <= self.mean.keys() & self.std.keys()

    def measure(self, events: Table) -> Moments:
        arrays = {name: _values(events, name) for name in self.columns}
        return {name: (a.size, math.fsum(a.tolist()), math.fsum((a * a).tolist())) for name, a in arrays.items()}

    def fitted(self, parts: Sequence[Moments]) -> Self:
        mean, std = dict(self.mean), dict(self.std)
        for name in self.columns:
            count = sum(part[name][0] for part in parts)
            if not count:
                raise DataError(f"standard cannot be fitted: no values in column '{name}'")
            # fsum is correctly rounded, so the order of files cannot change a bit of the result
            average = math.fsum(part[name][1] for part in parts) / count
            variance = math.fsum(part[name][2] for part in parts) / count - average**2
            mean.setdefault(name, average)
            std.setdefault(name, math.sqrt(max(variance, 0.0)))
        return self.model_copy(update={"mean": mean, "std": std})

    def __call__(self, events: Table) -> Table:
        return _scaled(events, self.columns, lambda name, v: (v - self.mean[name]) / (self.std[name] or 1.0))


def _values(events: Table, name: str) -> NDArray[np.float64]:
    column = events[name]
    values = column.values if isinstance(column, Ragged) else column
    return np.asarray(values, dtype=np.float64).ravel()


def _scaled(
    events: Table, columns: Sequence[str], scale: Callable[[str, NDArray[np.float64]], NDArray[np.float64]]
) -> Table:
    new: dict[str, NDArray[np.float64] | Ragged] = {}
    for name in columns:
        column = events[name]
        if isinstance(column, Ragged):
            new[name] = column.share(scale(name, column.values.astype(np.float64)))
        else:
            new[name] = scale(name, column.astype(np.float64))
    return events.join(new, units=dict.fromkeys(columns, ""))
