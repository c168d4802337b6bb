"""A straight line through flat columns whose trials can be slow, or fail once or always."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn

from clew import Batch, Recipe, Section, Table
from clew.errors import ConfigError
from clew.metrics import Metric, Ratio


class Settings(Section):
    """The fault, its first step and its rank; with `once` (a file) only until the file exists."""

    wide: int = 4
    pause: float = 0.0
    """Additional seconds per step."""
    fault: Literal["none", "raise", "nan", "kill", "hang", "full", "impossible"] = "none"
    after: int = 2
    rank: int = 0
    once: str = ""

    def model_post_init(self, context: Any) -> None:
        if self.wide == 3 and self.after == 99:
            raise ValueError("wide 3 and after 99 do not go together")


class Slope(Recipe):
    """y from x by least squares."""

    Config = Settings
    columns = ("x", "y")
    _steps = 0

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        if self.config.fault == "impossible":
            raise ConfigError("there can be no such model")
        return nn.Sequential(nn.Linear(3, self.config.wide), nn.Linear(self.config.wide, 1))

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"]).squeeze(1)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return (outputs - batch["y"]) ** 2

    def step(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        outputs = self.forward(model, batch)
        time.sleep(self.config.pause)
        Slope._steps += 1
        if self.config.fault != "none" and Slope._steps > self.config.after and self._fails_on_this_rank():
            outputs = self._go_wrong(outputs)
        return {"loss": self.loss(outputs, batch)}

    def _fails_on_this_rank(self) -> bool:
        if (dist.get_rank() if dist.is_initialized() else 0) != self.config.rank:
            return False
        if not self.config.once:
            return True
        try:
            Path(self.config.once).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _go_wrong(self, outputs: Tensor) -> Tensor:
        fault = self.config.fault
        if fault == "raise":
            raise ValueError("boom on purpose")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hang":
            time.sleep(3600)
        if fault == "full":  # as a full disk: later writes fail
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        return outputs * float("nan") if fault == "nan" else outputs

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        near = abs(objects.fixed("output") - samples.fixed("y")) < 0.5
        return {"near": Ratio.of(near, samples.weights)}
