"""The result of a scaling study: all its trainings and forecasts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from clew.bench.results import BenchResult
from clew.bench.scaling.expectation import Expectation, ExpectedSize
from clew.bench.scaling.forecast import Forecast
from clew.bench.scaling.measurement import PARTS, ScalingRun
from clew.errors import ConfigError

KIND = "scale"


@dataclass
class ScalingResult(BenchResult):
    """All trainings of a scaling study, and what follows from them."""

    kind: ClassVar[str] = KIND

    config: dict[str, Any]
    conditions: dict[str, Any]
    trainings: list[ScalingRun] = field(default_factory=list)
    forecasts: dict[str, Forecast] = field(default_factory=dict)
    expectations: dict[str, Expectation] = field(default_factory=dict)
    """What the bytes of a step and the bandwidths of `ScaleConfig.links` allow, by strategy."""

    @property
    def weak(self) -> bool:
        """Whether the work grows with the workers."""
        return bool(self.config["weak"])

    @property
    def strategies(self) -> list[str]:
        """The measured strategies, in order."""
        return list(dict.fromkeys(run.strategy for run in self.trainings))

    def sizes(self, strategy: str) -> list[int]:
        """Return the measured numbers of workers of a strategy."""
        return sorted({run.workers for run in self.trainings if run.strategy == strategy and run.blocks})

    def runs_at(self, strategy: str, workers: int) -> list[ScalingRun]:
        """Return the successful trainings of one strategy and number of workers."""
        return [run for run in self.trainings if (run.strategy, run.workers) == (strategy, workers) and run.blocks]

    def speed(self, strategy: str, workers: int) -> float:
        """Return the events per second, averaged over trainings."""
        speeds = [run.events_per_second for run in self.runs_at(strategy, workers)]
        return sum(speeds) / len(speeds)

    def speedup(self, strategy: str, workers: int) -> float:
        """Return the speed-up relative to the smallest size of the strategy, which counts as ideal."""
        smallest = self.sizes(strategy)[0]
        return smallest * self.speed(strategy, workers) / self.speed(strategy, smallest)

    def mean(self, strategy: str, workers: int, part: str, key: str) -> float | None:
        """Return the mean of an entry of `shares` or `loading` over trainings."""
        parts = [getattr(run, part) for run in self.runs_at(strategy, workers)]
        return _mean([values[key] for values in parts if key in values])

    def filling(self, strategy: str, workers: int) -> float | None:
        """Return the mean seconds until all ranks had their samples in memory."""
        return _mean([run.filling for run in self.runs_at(strategy, workers) if run.filling is not None])

    def loss(self, strategy: str, workers: int) -> float | None:
        """Return the loss of the last validation, averaged over trainings."""
        return _mean([run.validations[-1][2] for run in self.runs_at(strategy, workers) if run.validations])

    def oversubscribed(self, strategy: str, workers: int) -> bool:
        """Return whether a size had less than one core or device per rank."""
        return any(run.oversubscribed for run in self.runs_at(strategy, workers))

    def rows(self) -> list[dict[str, Any]]:
        """Return the figures of every strategy and size."""
        return [self._row(name, workers) for name in self.strategies for workers in self.sizes(name)]

    def _row(self, name: str, workers: int) -> dict[str, Any]:
        speedup = self.speedup(name, workers)
        return {
            "strategy": name,
            "workers": workers,
            "oversubscribed": self.oversubscribed(name, workers),
            "trainings": len(self.runs_at(name, workers)),
            "events_per_second": round(self.speed(name, workers), 3),
            "each": [round(run.events_per_second, 3) for run in self.runs_at(name, workers)],
            "speedup": round(speedup, 4),
            "efficiency": round(speedup / workers, 4),
            "filling_seconds": self.filling(name, workers),
            "loading_seconds_per_1000_events": self.mean(name, workers, "loading", "mean"),
            "loss": self.loss(name, workers),
            "shares": {part: self.mean(name, workers, "shares", part) for part in PARTS},
        }

    def derived(self) -> dict[str, Any]:
        return {"sizes": self.rows()}

    @classmethod
    def load(cls, path: Path) -> ScalingResult:
        """Read a result.

        Raises:
            ConfigError: The file holds something else.
        """
        try:
            data = json.loads(path.read_text())
            if data["kind"] != KIND or data["format"] != 1:
                raise ValueError(f"kind {data['kind']}, format {data['format']}")
            trainings = [
                ScalingRun(**{**each, "blocks": list(map(tuple, each["blocks"]))}) for each in data["trainings"]
            ]
            forecasts = {name: Forecast(**each) for name, each in data["forecasts"].items()}
            expectations = {name: _expectation(each) for name, each in data.get("expectations", {}).items()}
            return cls(data["config"], data["conditions"], trainings, forecasts, expectations)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: not a result of clew bench scale ({error})") from error


def _expectation(data: dict[str, Any]) -> Expectation:
    return Expectation(**{**data, "sizes": [ExpectedSize(**size) for size in data["sizes"]]})


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
