"""The recipe of the frozen files: a straight line through three numbers, and a ragged column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import clew


class Line(clew.Recipe):
    """y from x by least squares."""

    columns = ("x", "hits", "y")

    class Config(clew.Section):
        """The size of the network."""

        hidden: int = 4

    def transforms(self) -> Sequence[clew.transforms.Transform]:
        return [clew.transforms.Standard(columns=("x",))]

    def label_columns(self) -> Sequence[str]:
        return ("y",)

    def prepare(self, events: clew.Table) -> clew.Table:
        return events

    def model(self) -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(3, self.config.hidden), nn.Tanh(), nn.Linear(self.config.hidden, 1))

    def forward(self, model: Any, batch: clew.Batch) -> Any:
        return {"value": model(batch["x"].float()).squeeze(1)}

    def loss(self, outputs: Any, batch: clew.Batch) -> Any:
        return (outputs["value"] - batch["y"]) ** 2

    def metrics(self, samples: clew.Table, outputs: Mapping[str, Any], objects: clew.Table) -> Mapping[str, Any]:
        distances = abs(outputs["value"] - samples.fixed("y"))
        return {"distance": clew.metrics.Mean(float(distances.sum()), len(distances))}
