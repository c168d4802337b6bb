"""Scaling of columns, with ranges or moments that are set by hand or fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from clew.data.table import Ragged, Table
from clew.data.transforms.base import FittedTransform
from clew.errors import DataError

Moments = dict[str, tuple[int, float, float]]
"""Count, sum, and sum of squares about the mean of the part. Sums of plain squares lose precision far from zero."""

_ROUNDING = 4 * float(np.finfo(np.float64).eps)


class MinMax(FittedTransform):
    """Scales columns to [-1, 1]: `low` becomes -1, `high` becomes 1. Values outside are not clipped."""

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
            ranges = [part[name] for part in parts if name in part]
            if not ranges:
                raise DataError(f"min_max cannot be fitted: no values in column '{name}'")
            # + 0.0 makes -0.0 a 0.0: which of the two min() picks depends on the order
            low.setdefault(name, min(pair[0] for pair in ranges) + 0.0)
            high.setdefault(name, max(pair[1] for pair in ranges) + 0.0)
        return self.model_copy(update={"low": low, "high": high})

    def __call__(self, events: Table) -> Table:
        _check_fitted(self.kind, self.columns, self.low, self.high)

        def scale(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
            span = self.high[name] - self.low[name]
            return 2 * (values - self.low[name]) / (span or 1.0) - 1

        return _scaled(events, self.columns, scale)


class Standard(FittedTransform):
    """Scales columns to mean 0 and standard deviation 1. A constant column becomes 0."""

    kind: Literal["standard"] = "standard"
    columns: tuple[str, ...]
    mean: dict[str, float] = {}
    std: dict[str, float] = {}

    @property
    def needs_fit(self) -> bool:
        return not set(self.columns) <= self.mean.keys() & self.std.keys()

    def measure(self, events: Table) -> Moments:
        arrays = {name: _values(events, name) for name in self.columns}
        return {name: _moments(array) for name, array in arrays.items()}

    def fitted(self, parts: Sequence[Moments]) -> Self:
        mean, std = dict(self.mean), dict(self.std)
        for name in self.columns:
            count = sum(part[name][0] for part in parts)
            if not count:
                raise DataError(f"standard cannot be fitted: no values in column '{name}'")
            # fsum is correctly rounded, so the order of files cannot change a bit of the result
            average = math.fsum(part[name][1] for part in parts) / count
            deviation = math.sqrt(math.fsum(_squares(*part[name], average) for part in parts) / count)
            mean.setdefault(name, average)
            std.setdefault(name, deviation if deviation > _ROUNDING * abs(average) else 0.0)
        return self.model_copy(update={"mean": mean, "std": std})

    def __call__(self, events: Table) -> Table:
        _check_fitted(self.kind, self.columns, self.mean, self.std)
        return _scaled(events, self.columns, lambda name, v: (v - self.mean[name]) / (self.std[name] or 1.0))


def _check_fitted(kind: str, columns: Sequence[str], *numbers: Mapping[str, float]) -> None:
    for name in columns:
        if any(name not in values for values in numbers):
            raise DataError(f"{kind} has no numbers for column '{name}' yet; fit it first (clew.transforms.fit)")


def _moments(values: NDArray[np.float64]) -> tuple[int, float, float]:
    total = math.fsum(values.tolist())
    centred = values - total / max(values.size, 1)
    return values.size, total, math.fsum((centred * centred).tolist())


def _squares(count: int, total: float, squares: float, middle: float) -> float:
    """Return the sum of squares of a part about another mean than its own."""
    return squares + count * (total / count - middle) ** 2 if count else 0.0


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
