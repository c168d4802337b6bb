"""The result of a comparison of strategies."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any, ClassVar

from clew.bench.results import BenchResult

UNLIMITED = "unlimited"
"""The bandwidth without a limit."""


@dataclass(frozen=True)
class StrategyGoal:
    """The target: a metric and the value to reach."""

    metric: str
    direction: str
    value: float | None = None

    def reached(self, value: float | None) -> bool:
        """Return whether a value reaches the target."""
        if value is None or self.value is None:
            return False
        return value >= self.value if self.direction == "maximize" else value <= self.value

    def best(self, values: list[float]) -> float | None:
        """Return the best of several values; None if there are none."""
        return None if not values else max(values) if self.direction == "maximize" else min(values)


@dataclass
class StrategyRun:
    """One training with a strategy at a bandwidth."""

    strategy: str
    bandwidth: str
    run: str
    seed: int = 0
    seconds: float | None = None
    """Time from the arrival of the last worker to the validation that reached the target; None if none did."""
    samples: int | None = None
    """Training samples until then."""
    best: float | None = None
    epochs: int = 0
    samples_per_second: float = 0.0
    communicate: float = 0.0
    """Share of the workers' time spent in communication."""
    curve: list[tuple[float, float]] = field(default_factory=list)
    """Seconds and metric of every validation."""
    message: str = ""
    """Why it failed, if it did."""


@dataclass
class StrategyStudy(BenchResult):
    """All trainings, and the conditions they ran under."""

    kind: ClassVar[str] = "strategies"

    goal: StrategyGoal
    conditions: dict[str, Any]
    reference: StrategyRun | None = None
    trials: list[StrategyRun] = field(default_factory=list)
    lines: dict[str, float] = field(default_factory=dict)
    """Measured bits per second of a connection, by bandwidth."""

    @property
    def strategies(self) -> list[str]:
        """The compared strategies, in order."""
        return list(dict.fromkeys(trial.strategy for trial in self.trials))

    def runs_at(self, strategy: str, bandwidth: str) -> list[StrategyRun]:
        """Return the trainings of a strategy at a bandwidth."""
        return [t for t in self.trials if (t.strategy, t.bandwidth) == (strategy, bandwidth)]

    def seconds(self, strategy: str, bandwidth: str) -> float | None:
        """Return the median time to the target; None if half or more of the trainings did not reach it."""
        times = sorted(math.inf if t.seconds is None else t.seconds for t in self.runs_at(strategy, bandwidth))
        median = statistics.median(times) if times else math.inf
        return median if math.isfinite(median) else None

    def fastest(self, bandwidth: str) -> str:
        """Return the strategy that reached the target first; empty if none did."""
        times = {name: time for name in self.strategies if (time := self.seconds(name, bandwidth)) is not None}
        return min(times, key=lambda name: times[name]) if times else ""
