"""What a master does: hold central weights, or a part of them, and let updates change them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clew.training.config import OptimizerConfig, TrainConfig
from clew.training.optimizer import make_optimizer

_SUM = OptimizerConfig(name="sgd", lr=1.0, lr_rule="none")
_OUTER = OptimizerConfig(name="sgd", lr=0.7, lr_rule="none", parameters={"momentum": 0.9, "nesterov": True})


def sends_gradients(config: TrainConfig) -> bool:
    """Whether workers send gradients and the master's optimiser is the one that learns."""
    central = config.central
    return config.strategy == "backup" or (
        config.strategy == "downpour" and central.optimizer is None and config.exchange_interval == 1
    )


class Holder:
    """Weights and the buffers behind them as one flat tensor, `values`, changed in place."""

    def __init__(self, values: Tensor, parameters: int, config: TrainConfig, *, add: bool = False) -> None:
        """`parameters`: how many of the values are; the rest are buffers. `add`: take what comes as it is, whatever
        the strategy: the top of a hierarchy does."""
        self.values, self.version = values, 0
        self.staleness: Counter[int] = Counter()
        """How many updates were made from weights so many versions old."""
        self.parameters = parameters
        self._weights = nn.Parameter(values[:parameters])
        self._buffers = values[parameters:]
        kind = "add" if add else config.strategy
        self._rule: Callable[[Tensor, dict[str, Any]], None] = {"easgd": self._pull, "gem": self._add}.get(
            kind, self._descend
        )
        self.optimizer = make_optimizer([self._weights], _with(config, kind))
        self._lr = self.optimizer.param_groups[0]["lr"]
        self._learns = not add and sends_gradients(config)

    def rate(self, factor: float) -> None:
        """Set the learning rate, where this one is what learns."""
        if self._learns:
            self.optimizer.param_groups[0]["lr"] = self._lr * factor

    @torch.no_grad()
    def take(self, update: Tensor, facts: dict[str, Any]) -> bool:
        """Apply an update; or leave it alone and say so: one that is not finite would spoil everything."""
        update = update.to(self.values.dtype)
        if not sound(update, facts):
            return False
        self.staleness[self.version - int(facts["version"])] += 1
        self._rule(update[: len(self._weights)], facts)
        if len(self._buffers):
            self._buffers.lerp_(update[len(self._weights) :], 1 / max(1, int(facts.get("workers", 1))))
        self.version += 1
        return True

    @torch.no_grad()
    def take_mean(self, updates: Sequence[Tensor], shares: Sequence[float]) -> None:
        """Apply the weighted mean of updates as one."""
        total = sum(shares)
        mean = torch.zeros_like(self.values)
        for update, share in zip(updates, shares, strict=True):
            mean.add_(update, alpha=share / total)
        self._descend(mean[: len(self._weights)], {})
        self._buffers.copy_(mean[len(self._weights) :])
        self.version += 1

    def _descend(self, update: Tensor, facts: dict[str, Any]) -> None:
        self._weights.grad = update
        self.optimizer.step()

    def _pull(self, theirs: Tensor, facts: dict[str, Any]) -> None:
        self._weights.lerp_(theirs, float(facts["alpha"]))

    def _add(self, update: Tensor, facts: dict[str, Any]) -> None:
        self._weights.add_(update)


def sound(update: Tensor, facts: Mapping[str, Any]) -> bool:
    """Whether an update is finite: workers look, who are many; who did not say is not believed."""
    said = facts.get("finite")
    return finite(update) if said is None else bool(said)


def finite(update: Tensor) -> bool:
    """Whether all numbers are, and not too large to be squared: BLAS has the sum of squares sooner than torch a sum."""
    values = (update.float() if update.dtype == torch.bfloat16 else update).numpy()
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(values, values)))


def _with(config: TrainConfig, kind: str) -> TrainConfig:
    """Settings in which the optimiser is the master's."""
    chosen = config.central.optimizer
    if kind == "add":
        chosen = _SUM
    elif chosen is None:
        chosen = config.optimizer if sends_gradients(config) else _OUTER if kind == "diloco" else _SUM
    elif config.strategy != "backup":  # it works on what workers' optimisers made of their rate
        chosen = chosen.model_copy(update={"lr_rule": "none"})
    return config.model_copy(update={"optimizer": chosen})
