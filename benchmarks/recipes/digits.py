"""Handwritten digits, 28 x 28 pixels and a label per line of text: 1.24 million parameters on few samples, so that
communication costs as much as computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from clew import Batch, Recipe, Section, Table
from clew.metrics import Metric, Ratio


class Settings(Section):
    """How wide the two hidden layers are."""

    hidden: tuple[int, int] = (1200, 250)


class Digits(Recipe):
    """Classifies 784 pixels into ten digits."""

    Config = Settings
    columns = ("pixels", "label")
    defaults: ClassVar[Mapping[str, Any]] = {"train": {"batch_size": 100, "epochs": 10}}

    def read(self, path: str) -> Iterable[Table]:
        lines = np.loadtxt(path, delimiter=",", dtype=np.float32)
        yield Table({"pixels": lines[:, :-1] / 255, "label": lines[:, -1].astype(np.int64)})

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        first, second = self.config.hidden
        layers = (nn.Linear(784, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 10))
        return nn.Sequential(*layers)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["pixels"])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return functional.cross_entropy(outputs, batch["label"], reduction="none")

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        right = outputs["output"].argmax(1) == samples.fixed("label")
        return {"accuracy": Ratio.of(right, samples.weights)}
