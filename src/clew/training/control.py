"""What steers a training from outside the step: the learning rate over time, and when enough is enough."""

from __future__ import annotations

import math
from typing import Any

from clew.errors import ConfigError, nearest
from clew.training.config import TrainConfig
from clew.training.engine import batch_size_scaling, lr_rule

_WARM = 0.05
"""Share of the steps over which a rate that was raised in step with the batch warms up."""


class Schedule:
    """The learning rate at any step, as a share of the configured one."""

    def __init__(self, config: TrainConfig, steps: int, steps_an_epoch: int) -> None:
        self._config, self._steps, self._epoch = config.schedule, max(steps, 1), max(steps_an_epoch, 1)
        raised = lr_rule(config.optimizer) == "linear" and batch_size_scaling(config.optimizer, config.size) > 1
        self._warmup = config.schedule.warmup if config.schedule.warmup is not None else (_WARM if raised else 0.0)
        self._warm = math.ceil(self._warmup * self._steps)
        self._flat = config.schedule.name == "constant" and not self._warm
        self.facts = (config.schedule.model_dump_json(), self._steps, self._epoch, self._warm)
        """Schedules with the same facts, as often reduced, are the same."""
        self.reduced = 0
        """How often a plateau has cut the rate."""

    def at(self, step: int) -> float:
        """The factor for the step with this number, counted from 0."""
        if self._flat:
            return 1.0
        if step < self._warm:
            return (step + 1) / self._warm * self._after(0.0, 0)
        return self._after((step - self._warm) / max(self._steps - self._warm, 1), step)

    def _after(self, share: float, step: int) -> float:
        name, floor = self._config.name, self._config.floor
        if name == "cosine":
            return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
        if name == "linear":
            return floor + (1 - floor) * (1 - min(share, 1.0))
        if name == "step":
            return self._config.factor ** (step // (self._config.epochs * self._epoch))
        return self._config.factor**self.reduced if name == "plateau" else 1.0


class MetricTracker:
    """Remembers the best value of a metric and how many validations have passed since."""

    def __init__(self, metric: str, direction: str, min_delta: float = 0.0) -> None:
        self.metric, self._sign, self._delta = metric, 1 if direction == "maximize" else -1, min_delta
        self.best: float | None = None
        self.since = 0

    def see(self, metrics: dict[str, float], setting: str) -> bool:
        """Whether this validation is the best so far.

        Raises:
            ConfigError: the metric is not among them.
        """
        if self.metric not in metrics:
            known = ", ".join(metrics)
            raise ConfigError(f"{setting} '{self.metric}' is not among {known}{nearest(self.metric, metrics)}")
        score = self._sign * metrics[self.metric]
        better = not math.isnan(score) and (self.best is None or score > self.best + self._delta)
        self.best, self.since = (score, 0) if better else (self.best, self.since + 1)
        return better


class ValidationTracker:
    """After every validation: are these the best weights, and is the training over?"""

    def __init__(self, config: TrainConfig, schedule: Schedule) -> None:
        self._config, self._schedule = config, schedule
        early = config.early_stopping
        self._best = MetricTracker(config.best.metric, config.best.direction)
        self._plateau = MetricTracker(config.best.metric, config.best.direction)
        self._early = (
            None
            if early is None
            else MetricTracker(
                early.metric or config.best.metric,
                early.direction
                or (config.best.direction if early.metric in (None, config.best.metric) else "minimize"),
                early.min_delta,
            )
        )

    def see(self, metrics: dict[str, float]) -> tuple[bool, str]:
        """Whether these weights are the best, and why to stop ('' to go on)."""
        best = self._best.see(metrics, "train.best.metric")
        if self._config.schedule.name == "plateau":
            self._plateau.see(metrics, "train.best.metric")
            if self._plateau.since >= self._config.schedule.epochs:
                self._schedule.reduced, self._plateau.since = self._schedule.reduced + 1, 0
        return best, self._target(metrics) or self._patience(metrics)

    def _target(self, metrics: dict[str, float]) -> str:
        target = self._config.target
        if target is None:
            return ""
        if target.metric not in metrics:
            raise ConfigError(f"train.target.metric '{target.metric}' is not among {', '.join(metrics)}")
        found = metrics[target.metric]
        reached = found >= target.value if target.direction == "maximize" else found <= target.value
        return f"{target.metric} is {found:.6g}, the target was {target.value:g}" if reached else ""

    def _patience(self, metrics: dict[str, float]) -> str:
        early = self._config.early_stopping
        if early is None or self._early is None:
            return ""
        self._early.see(metrics, "train.early_stopping.metric")
        if self._early.since < early.patience:
            return ""
        return f"{self._early.metric} has not got better in {early.patience} validations"

    def state(self) -> dict[str, Any]:
        """What a resumed training needs."""
        watches = {"best": self._best, "plateau": self._plateau, "early": self._early}
        return {"reduced": self._schedule.reduced} | {n: [w.best, w.since] for n, w in watches.items() if w}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from it."""
        self._schedule.reduced = state["reduced"]
        for name, watch in {"best": self._best, "plateau": self._plateau, "early": self._early}.items():
            if watch and name in state:
                watch.best, watch.since = state[name]
