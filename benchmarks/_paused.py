"""A classifier whose steps take a given time per sample: training of many ranks on few cores, for `scale_hosts.py`.

The network really learns, so a target has a meaning. Its arithmetic takes little time; a pause stands for that of a
larger one. So eight ranks on two cores take as long as on eight.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import clew
from clew import Batch, Dataset, Recipe, Section, Table

FEATURES = 20


class Settings(Section):
    pause: float = 0.002
    """Seconds per sample of a training step."""
    width: int = 480


class Paused(Recipe):
    """Binary classification of 20 numbers, slowly."""

    Config = Settings
    columns = ("x", "y")

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        width = self.config.width
        layers = [nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)]
        return nn.Sequential(*layers, nn.Flatten(0))

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        if outputs.requires_grad:
            time.sleep(self.config.pause * len(outputs))
        return binary_cross_entropy_with_logits(outputs, batch["y"], reduction="none")


def prepared(folder: Path, samples: int) -> Dataset:
    """Return a dataset whose classes a random network of two layers separates."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(samples + 1000, FEATURES)).astype(np.float32)
    hidden = np.tanh(x @ rng.normal(size=(FEATURES, 8)))
    y = (hidden @ rng.normal(size=8) > 0).astype(np.float32)
    Table({"x": x, "y": y}).save(folder / "paused.h5")
    split = {"train": samples / len(x), "val": 1000 / len(x)}
    output = str(folder / "dataset")
    return clew.prepare(Paused(), input=[str(folder / "paused.h5")], output=output, split=split, workers=1)
