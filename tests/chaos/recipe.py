"""A small recipe that takes its time: events in text files, a straight line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import clew


class Chaos(clew.Recipe):
    """y from x by least squares."""

    columns = ("x", "y")

    class Config(clew.Section):
        """How long things take."""

        slow_prepare: float = 0.02
        """Seconds for a piece."""
        slow_step: float = 0.01
        """Seconds for a step."""

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        random = np.random.default_rng([seed, first])
        x = random.normal(size=(events, 3)).astype(np.float32)
        y = (x @ np.array([1.0, -2.0, 0.5]) + 0.1 * random.normal(size=events)).astype(np.float32)
        path = folder / f"synthetic-seed{seed}-{first:06d}.h5"
        clew.Table({"event": np.arange(first, first + events), "x": x, "y": y}).save(path)
        yield path, events

    def prepare(self, events: clew.Table) -> clew.Table:
        time.sleep(self.config.slow_prepare)
        return events

    def model(self) -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, model: Any, batch: clew.Batch) -> Any:
        return model(batch["x"]).squeeze(1)

    def loss(self, outputs: Any, batch: clew.Batch) -> Any:
        if outputs.requires_grad:
            time.sleep(self.config.slow_step)
        return (outputs - batch["y"]) ** 2
