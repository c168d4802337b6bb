"""What a study of strategies found, as plain data."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clew.core.files import write_text

UNLIMITED = "unlimited"
"""A bandwidth: what the kernel gives."""


@dataclass(frozen=True)
class StrategyGoal:
    """What is to be reached."""

    metric: str
    direction: str
    value: float | None = None

    def reached(self, value: float | None) -> bool:
        """Whether a value is good enough."""
        if value is None or self.value is None:
            return False
        return value >= self.value if self.direction == "maximize" else value <= self.value

    def best(self, values: list[float]) -> float | None:
        """The best of some."""
        return None if not values else max(values) if self.direction == "maximize" else min(values)


@dataclass
class StrategyRun:
    """One training."""

    strategy: str
    bandwidth: str
    run: str
    seed: int = 0
    seconds: float | None = None
    """From when all workers were there to the validation that reached the target; None if none did."""
    samples: int | None = None
    """Learned from until then."""
    best: float | None = None
    epochs: int = 0
    samples_per_second: float = 0.0
    communicate: float = 0.0
    """Share of the workers' time."""
    curve: list[tuple[float, float]] = field(default_factory=list)
    """Seconds and the metric of every validation."""
    message: str = ""
    """Why it failed, if it did."""


@dataclass
class StrategyStudy:
    """All trials, and what they were done with."""

    goal: StrategyGoal
    conditions: dict[str, Any]
    reference: StrategyRun | None = None
    trials: list[StrategyRun] = field(default_factory=list)
    lines: dict[str, float] = field(default_factory=dict)
    """Bits a second that a connection was measured to carry, by bandwidth."""

    @property
    def strategies(self) -> list[str]:
        """Those compared, in order."""
        return list(dict.fromkeys(trial.strategy for trial in self.trials))

    def of(self, strategy: str, bandwidth: str) -> list[StrategyRun]:
        """The trainings of one kind."""
        return [t for t in self.trials if (t.strategy, t.bandwidth) == (strategy, bandwidth)]

    def seconds(self, strategy: str, bandwidth: str) -> float | None:
        """The median time to the target; None where half or more of the trainings did not get there."""
        found = sorted(math.inf if t.seconds is None else t.seconds for t in self.of(strategy, bandwidth))
        middle = statistics.median(found) if found else math.inf
        return middle if math.isfinite(middle) else None

    def fastest(self, bandwidth: str) -> str:
        """The strategy that reached the target first there; empty if none did."""
        known = {name: took for name in self.strategies if (took := self.seconds(name, bandwidth)) is not None}
        return min(known, key=lambda name: known[name]) if known else ""

    def save(self, path: Path) -> None:
        """As JSON."""
        write_text(path, json.dumps(asdict(self), indent=2) + "\n")
