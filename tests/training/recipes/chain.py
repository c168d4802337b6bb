"""A chain of layers that any strategy can train, and that logs the samples of its losses."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from clew import Batch, Recipe, Section, Table


class Settings(Section):
    log: str = ""
    """A folder for the numbers of the samples that each process trained on."""
    norm: bool = False
    fault: Literal["none", "raise", "always", "nan", "stop"] = "none"
    wide: int = 8


class Chain(Recipe):
    """y from x through a few layers."""

    Config = Settings
    columns = ("x", "y", "number")
    calls = 0
    """Batches that this process trained on."""

    def prepare(self, events: Table) -> Table:
        return events.join({"number": np.arange(len(events))})

    def model(self) -> nn.Module:
        wide = self.config.wide
        norm = [nn.BatchNorm1d(wide)] if self.config.norm else []
        return nn.Sequential(
            nn.Linear(3, wide), nn.Tanh(), *norm, nn.Linear(wide, wide), nn.Tanh(), nn.Linear(wide, 1), nn.Flatten(0)
        )

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        if outputs.requires_grad and self.config.log and batch.counts:
            with (Path(self.config.log) / str(os.getpid())).open("a") as file:
                file.writelines(f"{number}\n" for number in batch["number"].tolist())
            if self.config.fault == "always":
                raise ValueError("boom on purpose")
            if self.config.fault == "raise" and os.environ.get("RANK", os.environ.get("PMI_RANK")) == "1":
                raise ValueError("boom on purpose")
        self.calls += outputs.requires_grad
        if self.config.fault == "stop" and self.calls == 60:
            once = Path(self.config.log).with_name("stopped")
            if not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGTERM)
        if self.config.fault == "nan" and outputs.requires_grad:
            outputs = outputs * float("nan")
        return (outputs - batch["y"]) ** 2
