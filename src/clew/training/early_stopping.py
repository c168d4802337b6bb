"""Decisions after a validation: whether the weights are the best so far, and whether the training should end."""

from __future__ import annotations

import math
from typing import Any

from clew.core.metric_direction import natural_direction
from clew.errors import ConfigError, list_names, nearest
from clew.training.config import TrainConfig
from clew.training.schedule import Schedule


class MetricTracker:
    """Remembers the best value of a metric, and the number of validations since then."""

    def __init__(self, metric: str, direction: str | None, min_delta: float = 0.0) -> None:
        self.metric, self._direction, self._min_delta = metric, direction or natural_direction(metric), min_delta
        self.best: float | None = None
        self.since = 0

    def update(self, metrics: dict[str, float], setting: str) -> bool:
        """Add a validation, and return whether it is the best so far.

        Args:
            metrics: The metrics of the validation.
            setting: Name of the setting that selects the metric, for the message.

        Raises:
            ConfigError: There is no such metric, or its direction is not known.
        """
        if self.metric not in metrics:
            names = list_names(metrics, self.metric)
            raise ConfigError(f"{setting} '{self.metric}' is not among {names}{nearest(self.metric, metrics)}")
        if self._direction is None:
            place = setting.removesuffix(".metric")
            raise ConfigError(f"{setting} '{self.metric}' needs {place}.direction: minimize or maximize")
        score = (1 if self._direction == "maximize" else -1) * metrics[self.metric]
        better = not math.isnan(score) and (self.best is None or score > self.best + self._min_delta)
        self.best, self.since = (score, 0) if better else (self.best, self.since + 1)
        return better


class ValidationTracker:
    """Decides after every validation: are these the best weights, and should the training end?

    It also reduces the learning rate of the `plateau` schedule.
    """

    def __init__(self, config: TrainConfig, schedule: Schedule) -> None:
        self._config, self._schedule = config, schedule
        best, early = config.best, config.early_stopping
        self._best = MetricTracker(best.metric, best.direction)
        self._plateau = MetricTracker(best.metric, best.direction)
        self._early: MetricTracker | None = None
        if early is not None:
            metric = early.metric or best.metric
            direction = early.direction or (best.direction if metric == best.metric else None)
            self._early = MetricTracker(metric, direction, early.min_delta)

    def update(self, metrics: dict[str, float]) -> tuple[bool, str]:
        """Add a validation.

        Returns:
            Whether these weights are the best so far, and why to end the training (empty to continue).

        Raises:
            ConfigError: A metric that the settings name does not exist.
        """
        best = self._best.update(metrics, "train.best.metric")
        if self._config.schedule.name == "plateau":
            self._plateau.update(metrics, "train.best.metric")
            if self._plateau.since >= self._config.schedule.epochs:
                self._schedule.reduced, self._plateau.since = self._schedule.reduced + 1, 0
        return best, self._target_reached(metrics) or self._patience_exceeded(metrics)

    def _target_reached(self, metrics: dict[str, float]) -> str:
        target = self._config.target
        if target is None:
            return ""
        if target.metric not in metrics:
            raise ConfigError(
                f"train.target.metric '{target.metric}' is not among {list_names(metrics, target.metric)}"
            )
        value = metrics[target.metric]
        reached = value >= target.value if target.goal == "maximize" else value <= target.value
        return f"{target.metric} is {value:.6g}, the target was {target.value:g}" if reached else ""

    def _patience_exceeded(self, metrics: dict[str, float]) -> str:
        early = self._config.early_stopping
        if early is None or self._early is None:
            return ""
        self._early.update(metrics, "train.early_stopping.metric")
        if self._early.since < early.patience:
            return ""
        return f"{self._early.metric} has not improved in {early.patience} validations"

    def state(self) -> dict[str, Any]:
        """Return what a resumed training needs."""
        return {"reduced": self._schedule.reduced} | {n: [w.best, w.since] for n, w in self._trackers().items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._schedule.reduced = state["reduced"]
        for name, tracker in self._trackers().items():
            if name in state:
                tracker.best, tracker.since = state[name]

    def _trackers(self) -> dict[str, MetricTracker]:
        trackers = {"best": self._best, "plateau": self._plateau, "early": self._early}
        return {name: tracker for name, tracker in trackers.items() if tracker is not None}
