"""A recipe with a generator. Its network runs out of memory when a batch is too large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clew import Batch, Recipe, Section, Table
from clew.metrics import Metric, Ratio


class Settings(Section):
    """The largest batch that fits."""

    fits: int = 1000


class Small(Recipe):
    """y from x."""

    Config = Settings
    columns = ("x", "y")
    defaults = {"train": {"monitor_seconds": None}}

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(events, 3)).astype(np.float32)
        path = folder / "events.h5"
        folder.mkdir(parents=True, exist_ok=True)
        Table({"x": x, "y": x.sum(axis=1)}).save(path)
        yield path, events

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        return nn.Linear(3, 1)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        if model.training and batch.size > self.config.fits:
            torch.empty(1 << 60)
        return model(batch["x"]).squeeze(1)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return (outputs - batch["y"]) ** 2

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        return {"accuracy": Ratio.of(abs(objects.fixed("output") - samples.fixed("y")) < 1)}
