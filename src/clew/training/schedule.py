"""The learning rate during a training, as a fraction of the configured rate."""

from __future__ import annotations

import math

from clew.training.config import TrainConfig
from clew.training.optimizer import batch_size_scaling, lr_rule

_DEFAULT_WARMUP = 0.05
"""Fraction of the steps used for warm-up if the rate was increased in proportion to the batch size."""


class Schedule:
    """Computes the learning rate of every step. The loop, the packs and the asynchronous workers use it."""

    def __init__(self, config: TrainConfig, steps: int, steps_per_epoch: int) -> None:
        self._config, self._steps, self._epoch = config.schedule, max(steps, 1), max(steps_per_epoch, 1)
        increased = lr_rule(config.optimizer) == "linear" and batch_size_scaling(config.optimizer, config.size) > 1
        default = _DEFAULT_WARMUP if increased else 0.0
        warmup = config.schedule.warmup if config.schedule.warmup is not None else default
        self._warmup_steps = math.ceil(warmup * self._steps)
        self._constant = config.schedule.name == "constant" and not self._warmup_steps
        self.facts = (config.schedule.model_dump_json(), self._steps, self._epoch, self._warmup_steps)
        """Two schedules with equal `facts` and equal `reduced` give the same rates."""
        self.reduced = 0
        """How many times a plateau has reduced the rate."""

    def at(self, step: int) -> float:
        """Return the factor for a step, counted from 0."""
        if self._constant:
            return 1.0
        if step < self._warmup_steps:
            return (step + 1) / self._warmup_steps * self._after_warmup(0.0, 0)
        progress = (step - self._warmup_steps) / max(self._steps - self._warmup_steps, 1)
        return self._after_warmup(progress, step)

    def _after_warmup(self, progress: float, step: int) -> float:
        name, floor = self._config.name, self._config.floor
        if name == "cosine":
            return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
        if name == "linear":
            return floor + (1 - floor) * (1 - min(progress, 1.0))
        if name == "step":
            return self._config.factor ** (step // (self._config.epochs * self._epoch))
        return self._config.factor**self.reduced if name == "plateau" else 1.0
