"""A straight line through flat columns, a minimal recipe that can fail on request."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clew import Batch, Loss, Recipe, Section, Table
from clew.errors import DataError
from clew.metrics import Metric, Ratio


class Settings(Section):
    """What `loss` returns, and which fault occurs on which rank."""

    form: Literal["each", "mean", "loss", "normalised", "turned", "nothing"] = "each"
    fault: Literal["none", "raise", "user", "nan", "kill", "validation"] = "none"
    rank: int = 1
    frozen: bool = False
    unequal: bool = False
    """Every rank starts with different weights."""
    normed: bool = False
    """A batch norm before the line."""
    wide: int = 4
    unused: bool = False
    """A parameter that no loss depends on."""
    slow: float = 0.0
    """Additional seconds per step."""
    stop_after: int = 0
    """Training batches after which a process asks itself to stop; 0 for never. A resumed process counts from 0."""
    revoked: str = ""
    """The file of a lease that is taken away during a validation."""


def own_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


class Line(Recipe):
    """y from x by least squares."""

    Config = Settings
    columns = ("x", "y")
    calls = 0
    """Batches that this process trained on."""

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        inner, outer = nn.Linear(3, self.config.wide), nn.Linear(self.config.wide, 1)
        inner.requires_grad_(not self.config.frozen)
        if self.config.unequal:
            nn.init.constant_(outer.weight, 0.1 * (1 + own_rank()))
        model = nn.Sequential(inner, nn.BatchNorm1d(4), outer) if self.config.normed else nn.Sequential(inner, outer)
        if self.config.unused:
            model.register_parameter("unused", nn.Parameter(torch.ones(3)))
        return model

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"]).squeeze(1)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor | Loss:
        if outputs.requires_grad:
            time.sleep(self.config.slow)
            self.calls += 1
            if self.calls == self.config.stop_after:
                os.kill(os.getpid(), signal.SIGTERM)
        each = (outputs - batch["y"]) ** 2
        if self.config.form == "nothing":
            return Loss(each.sum() * 0, 0.0)
        if self.config.form in ("normalised", "turned"):
            assert batch.weights is not None
            weights = batch.weights * (1 if self.config.form == "normalised" else -1)
            return Loss((each * weights).sum(), float(weights.sum()))
        if self.config.form == "loss":
            return Loss(each.sum(), float(batch.size))
        return each if self.config.form == "each" else each.mean()

    def step(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor | Loss]:
        outputs, fault = self.forward(model, batch), self.config.fault
        if own_rank() == self.config.rank:
            if fault == "raise":
                raise ValueError("boom on purpose")
            if fault == "user":
                raise DataError("wrong data on purpose")
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "nan":
                outputs = outputs * float("nan")
        return {"loss": self.loss(outputs, batch)}

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        """`near`: predictions within 0.5; `high`: the same of those above 1.5, of which there may be none."""
        predicted, true = objects.fixed("output"), samples.fixed("y")
        if self.config.fault == "validation" and len(samples) > 4:  # a rehearsal has four
            raise ValueError("wrong on purpose")
        if self.config.revoked and len(samples) > 4:
            Path(self.config.revoked).unlink(missing_ok=True)
        near, high = abs(predicted - true) < 0.5, predicted > 1.5
        return {"near": Ratio.of(near, samples.weights), "high": Ratio.of(near[high])}
