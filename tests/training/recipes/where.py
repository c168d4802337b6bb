"""A recipe whose metrics say which process computed them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from clew import Batch, Recipe, Section, Table
from clew.metrics import Mean, Metric, Ratio


class Settings(Section):
    """Where metrics belong, and what goes wrong elsewhere."""

    main: int = 0
    """Number of the process that applies the network."""
    seconds: float = 0.0
    """What the metrics of a batch take."""
    fails: bool = False
    """Metrics raise an exception, in every process."""
    killed: bool = False
    """Other processes are killed while they compute."""


class Where(Recipe):
    """y is the sum of the columns of x."""

    Config = Settings
    columns = ("x", "y")

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        return nn.Linear(3, 1)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        output: Tensor = model(batch["x"])[:, 0]
        return output

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return (outputs - batch["y"]) ** 2

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        is_elsewhere = os.getpid() != self.config.main
        time.sleep(self.config.seconds)
        if self.config.killed and is_elsewhere:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.config.fails:
            raise ValueError("no such metric")
        samples.fixed("x")[:] += 1  # in the memory of this process only
        return {
            "elsewhere": Ratio(float(is_elsewhere), 1.0),
            "first": Mean(float(samples["event"][0]), 1.0),
            "output": Mean(float(outputs["output"].sum()), float(len(outputs["output"]))),
        }
