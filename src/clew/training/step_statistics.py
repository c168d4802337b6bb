"""Losses and times of the steps since the last record, and the samples of a step whose loss is not finite."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clew.data.dataset.loader import BatchShare, Loader
from clew.data.table import Ragged
from clew.errors import ClewError
from clew.recipe import Loss
from clew.runs import Run
from clew.training.strategies import LossSum, Strategy

RECORD_SECONDS = 0.5
"""Seconds between two records, unless `train.log_every` sets a number of steps."""


class NotFiniteError(ClewError):
    """The loss became NaN or infinite."""


@dataclass(frozen=True)
class NonFiniteLoss:
    """The first step since the last record whose loss is not finite."""

    number: int
    """Number of the step, counted from the last record."""
    name: str
    """Name of the loss."""
    value: float
    numbers: NDArray[np.int64]
    """Numbers of the samples of this rank in that step."""


class StepStatistics:
    """Collects losses between two records. It computes nothing, and waits for no device, before it is read."""

    def __init__(self, loader: Loader, strategy: Strategy) -> None:
        self._loader, self._strategy = loader, strategy
        self._start = time.perf_counter()
        self._load_before, self._communicate_before = loader.waited, strategy.communication_seconds
        self._sums: list[Mapping[str, LossSum | Loss]] = []
        self._logged: dict[str, list[Tensor | float]] = {}
        self._numbers: list[NDArray[np.int64]] = []
        self._values: dict[str, tuple[list[float], list[float]]] | None = None

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return len(self._sums)

    @property
    def age(self) -> float:
        """Seconds since this object was made."""
        return time.perf_counter() - self._start

    def add(
        self,
        sums: Mapping[str, LossSum | Loss],
        portion: BatchShare,
        logged: Mapping[str, Tensor | float] = MappingProxyType({}),
    ) -> None:
        """Add the losses of one step, and other values that it logged."""
        self._sums.append(sums)
        self._numbers.append(portion.numbers)
        for name, value in logged.items():
            self._logged.setdefault(name, []).append(value)

    def logged(self) -> dict[str, float]:
        """The mean of each logged value over the steps that logged it. Values that are not finite are left out."""
        means = {name: float(np.mean(_to_floats(values))) for name, values in self._logged.items()}
        return {name: value for name, value in means.items() if math.isfinite(value)}

    def losses(self) -> dict[str, float]:
        """The mean of each loss. Empty if one of them had no terms at all."""
        means = {}
        for name, (totals, weights) in self._read().items():
            if not sum(weights):
                return {}
            means[name] = sum(totals) / sum(weights)
        return means

    def sums(self) -> dict[str, list[float]]:
        """The total and the weight of each loss."""
        return {name: [sum(totals), sum(weights)] for name, (totals, weights) in self._read().items()}

    @property
    def samples(self) -> int:
        """Number of samples of this rank."""
        return sum(map(len, self._numbers))

    def times(self) -> dict[str, float]:
        """Seconds: in total, spent waiting for data (`wait`), and spent communicating."""
        return {
            "seconds": time.perf_counter() - self._start,
            "wait": self._loader.waited - self._load_before,
            "communicate": self._strategy.communication_seconds - self._communicate_before,
        }

    def first_non_finite(self) -> NonFiniteLoss | None:
        """The first step with a loss that is not finite, if there is one."""
        for name, (totals, _) in self._read().items():
            if not math.isfinite(sum(totals)):
                number = next(n for n, total in enumerate(totals) if not math.isfinite(total))
                return NonFiniteLoss(number, name, totals[number], self._numbers[number])
        return None

    def _read(self) -> dict[str, tuple[list[float], list[float]]]:
        """Totals and weights of every step, per loss. They are read once; only this waits for a device."""
        if self._values is None:
            self._values = {
                name: (
                    _to_floats([sums[name].total for sums in self._sums]),
                    _to_floats([sums[name].weight for sums in self._sums]),
                )
                for name in self._sums[0]
            }
        return self._values


def save_bad_batch(run: Run, rank: int, loader: Loader, bad: NonFiniteLoss, step: int) -> NotFiniteError:
    """Save the samples of a step whose loss is not finite, and return the error to raise.

    Args:
        run: The run, in whose folder the samples are saved.
        rank: The rank of this process.
        loader: The loader that holds the samples.
        bad: The loss, and the numbers of the samples.
        step: Number of the step in the run.
    """
    advice, location = "lower train.optimizer.lr or set train.clip", ""
    if len(bad.numbers):
        table = loader.store.read(bad.numbers)
        path = run.bad_batch(step, rank)
        table.save(path)
        location = f"; its samples are in {path}"
        for name, column in table.items():
            values = column.values if isinstance(column, Ragged) else column
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                advice = f"column '{name}' of the batch holds NaN or infinity"
                break
    return NotFiniteError(f"{bad.name} is {bad.value} at step {step}; {advice}{location}")


def _to_floats(values: Sequence[Tensor | float]) -> list[float]:
    first = values[0]
    if isinstance(first, Tensor) and first.device.type != "cpu":
        numbers: list[float] = torch.stack([value for value in values if isinstance(value, Tensor)]).tolist()
        return numbers if len(numbers) == len(values) else [float(value) for value in values]
    return [float(value) for value in values]
