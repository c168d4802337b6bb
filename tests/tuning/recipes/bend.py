"""A small curve through flat columns that can be trained in packs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from clew import Batch, Recipe, Section, Table
from clew.metrics import Metric, Ratio


class Settings(Section):
    """`part` weights a part of the loss; `pause` is the additional time of a step, in seconds."""

    wide: int = 4
    dropout: float = 0.0
    part: float = 1.0
    pause: float = 0.0
    once: str = ""
    """A file: the process that creates it kills itself after some steps."""


class Bend(Recipe):
    """y from x."""

    Config = Settings
    columns = ("x", "y")
    _steps = 0

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        wide = self.config.wide
        return nn.Sequential(nn.Linear(3, wide), nn.Tanh(), nn.Dropout(self.config.dropout), nn.Linear(wide, 1))

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        if model.training:
            time.sleep(self.config.pause)
            self._die()
        return model(batch["x"]).squeeze(-1)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        far: Tensor = (outputs - batch["y"]) ** 2
        loss: Tensor = far * self.config.part + abs(outputs) * 0.01
        return loss

    def _die(self) -> None:
        Bend._steps += 1
        if self.config.once and Bend._steps > 8 and not Path(self.config.once).exists():
            Path(self.config.once).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        near = abs(objects.fixed("output") - samples.fixed("y")) < 0.5
        return {"near": Ratio.of(near, samples.weights)}
