"""What happened since the last record: losses, where the time went, and which samples were in it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clew.data.dataset.loader import Loader, Portion
from clew.data.table import Ragged
from clew.errors import ClewError
from clew.runs import Run
from clew.training.strategies import LossSum, Strategy


class NotFiniteError(ClewError):
    """The loss became NaN or infinite."""


@dataclass(frozen=True)
class NonFiniteLoss:
    """The first step whose loss is not finite, counted from the last record, and this rank's samples in it."""

    number: int
    name: str
    value: float
    numbers: NDArray[np.int64]


class StepStatistics:
    """Fills between two records. Nothing is computed, and no device waited for, before it is read."""

    def __init__(self, loader: Loader, strategy: Strategy) -> None:
        self._loader, self._strategy = loader, strategy
        self._begun, self._waited, self._talked = time.perf_counter(), loader.waited, strategy.waited
        self._sums: list[dict[str, LossSum]] = []
        self._numbers: list[NDArray[np.int64]] = []
        self._known: dict[str, tuple[list[float], list[float]]] | None = None

    @property
    def steps(self) -> int:
        """Steps so far."""
        return len(self._sums)

    @property
    def age(self) -> float:
        """Seconds since it was begun."""
        return time.perf_counter() - self._begun

    def add(self, sums: dict[str, LossSum], portion: Portion) -> None:
        """One more step."""
        self._sums.append(sums)
        self._numbers.append(portion.numbers)

    def losses(self) -> dict[str, float]:
        """The mean of each loss; none where a batch had no single term of one."""
        found = {}
        for name, (totals, weights) in self._read().items():
            if not sum(weights):
                return {}
            found[name] = sum(totals) / sum(weights)
        return found

    def sums(self) -> dict[str, list[float]]:
        """The total and the weight of each loss."""
        return {name: [sum(totals), sum(weights)] for name, (totals, weights) in self._read().items()}

    @property
    def samples(self) -> int:
        """This rank's samples."""
        return sum(map(len, self._numbers))

    def times(self) -> dict[str, float]:
        """Seconds: all, waiting for data, communicating."""
        return {
            "seconds": time.perf_counter() - self._begun,
            "wait": self._loader.waited - self._waited,
            "communicate": self._strategy.waited - self._talked,
        }

    def first_bad(self) -> NonFiniteLoss | None:
        """The first step with a loss that is not finite, if there is one."""
        for name, (totals, _) in self._read().items():
            if not math.isfinite(sum(totals)):
                number = next(n for n, total in enumerate(totals) if not math.isfinite(total))
                return NonFiniteLoss(number, name, totals[number], self._numbers[number])
        return None

    def _read(self) -> dict[str, tuple[list[float], list[float]]]:
        """Totals and weights of every step, by loss: read once, which is when a device is waited for."""
        if self._known is None:
            self._known = {
                name: (
                    _floats([sums[name].total for sums in self._sums]),
                    _floats([s[name].weight for s in self._sums]),
                )
                for name in self._sums[0]
            }
        return self._known


def save_bad_batch(run: Run, rank: int, loader: Loader, bad: NonFiniteLoss, step: int) -> NotFiniteError:
    """Keep the samples of a step that went wrong; the error that tells of it."""
    told = "lower train.optimizer.lr or set train.clip"
    where = ""
    if len(bad.numbers):
        table = loader.store.read(bad.numbers)
        path = run.bad_batch(step, rank)
        table.save(path)
        where = f"; its samples are in {path}"
        for name, column in table.items():
            values = column.values if isinstance(column, Ragged) else column
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                told = f"column '{name}' of the batch holds NaN or infinity"
                break
    return NotFiniteError(f"{bad.name} is {bad.value} at step {step}; {told}{where}")


def _floats(values: Sequence[Tensor | float]) -> list[float]:
    first = values[0]
    if isinstance(first, Tensor) and first.device.type != "cpu":
        found: list[float] = torch.stack([v for v in values if isinstance(v, Tensor)]).tolist()
        return found
    return [float(value) for value in values]
