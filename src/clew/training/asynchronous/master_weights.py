"""The central weights, or a slice of them, and how updates change them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clew.training.asynchronous.rules import make_rule
from clew.training.asynchronous.rules.base import plain_sum
from clew.training.config import TrainConfig
from clew.training.optimizer import make_optimizer


class MasterWeights:
    """Weights and the buffers behind them as one flat tensor, `values`, which updates change in place."""

    def __init__(
        self, values: Tensor, parameter_count: int, config: TrainConfig, *, above_groups: bool = False
    ) -> None:
        """Make the central weights.

        Args:
            values: Parameters, then buffers, as one flat tensor. It is changed in place.
            parameter_count: How many of the values are parameters.
            config: The settings, which name the rule.
            above_groups: Whether the updates come from masters of groups: each is subtracted as it is.
        """
        self.values, self.version = values, 0
        self.staleness: Counter[int] = Counter()
        """Number of updates by the age, in versions, of the weights they were computed from."""
        self.parameter_count = parameter_count
        self._weights = nn.Parameter(values[:parameter_count])
        self._buffers = values[parameter_count:]
        self._rule, self._above_groups = make_rule(config), above_groups
        chosen = plain_sum() if above_groups else self._rule.master_optimizer()
        self.optimizer = make_optimizer([self._weights], config.model_copy(update={"optimizer": chosen}))
        self._base_rate = self.optimizer.param_groups[0]["lr"]
        self._scheduled = not above_groups and self._rule.sends_gradients

    def scale_rate(self, factor: float) -> None:
        """Set the learning rate to `factor` times its base value, if the rule sends gradients to the master."""
        if self._scheduled:
            self.optimizer.param_groups[0]["lr"] = self._base_rate * factor

    @torch.no_grad()
    def apply(self, update: Tensor, fields: Mapping[str, Any]) -> bool:
        """Apply one update.

        Args:
            update: What was sent for these parameters and buffers.
            fields: The other values of the message: the version it is based on, the number of workers.

        Returns:
            False if the update is not finite; then nothing is changed.
        """
        update = update.to(self.values.dtype)
        if not update_is_finite(update, fields):
            return False
        self.staleness[self.version - int(fields["version"])] += 1
        parameters, buffers = update[: len(self._weights)], update[len(self._weights) :]
        if self._above_groups:
            self._step(parameters)
        else:
            self._rule.apply_update(self._weights, parameters, fields, self._step)
        if len(self._buffers):
            self._buffers.lerp_(buffers, 1 / max(1, int(fields.get("workers", 1))))
        self.version += 1
        return True

    @torch.no_grad()
    def apply_mean(self, updates: Sequence[Tensor], shares: Sequence[float]) -> None:
        """Apply the mean of updates, weighted by `shares`, as the gradient of one optimiser step."""
        total = sum(shares)
        mean = torch.zeros_like(self.values)
        for update, share in zip(updates, shares, strict=True):
            mean.add_(update, alpha=share / total)
        self._step(mean[: len(self._weights)])
        self._buffers.copy_(mean[len(self._weights) :])
        self.version += 1

    def _step(self, gradient: Tensor) -> None:
        self._weights.grad = gradient
        self.optimizer.step()


def update_is_finite(update: Tensor, fields: Mapping[str, Any]) -> bool:
    """Return whether an update is finite. Workers check this and send the result; if it is missing, check here."""
    checked = fields.get("finite")
    return is_finite(update) if checked is None else bool(checked)


def is_finite(update: Tensor) -> bool:
    """Return whether all values are finite and their squares do not overflow.

    One BLAS dot product is faster than a check of every value by torch.
    """
    values = (update.float() if update.dtype == torch.bfloat16 else update).numpy()
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(values, values)))
