"""A recipe whose steps take a given time by sleeping; optionally three times as long in the first worker."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

import clew
from clew import Batch, Dataset, Recipe, Section, Table


class Settings(Section):
    pause: float = 0.02
    folder: str = ""
    """Folder of the marker file of the first worker, which is slow from then on. Empty: no worker is slow."""


class Sleepy(Recipe):
    """A linear model with slow steps."""

    Config = Settings
    columns = ("x", "y")
    factor = 0

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        return nn.Linear(3, 1)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"]).squeeze(1)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        if outputs.requires_grad:
            if not self.factor:
                self.factor = 3 if self._first() else 1
            time.sleep(self.factor * self.config.pause)
        return (outputs - batch["y"]) ** 2

    def _first(self) -> bool:
        if not self.config.folder:
            return False
        try:
            os.close(os.open(Path(self.config.folder) / "slow", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def prepared(folder: Path, batches: int) -> Dataset:
    """A dataset of `batches` batches of ten, and a few held-out samples."""
    x = np.random.default_rng(1).normal(size=(10 * batches + 100, 3)).astype(np.float32)
    path = folder / "sleepy.h5"
    Table({"x": x, "y": x.sum(1)}).save(path)
    shares = {"train": 10 * batches / len(x), "val": 100 / len(x)}
    return clew.prepare(Sleepy(), input=[str(path)], output=str(folder / "sleepy"), split=shares, workers=1)
