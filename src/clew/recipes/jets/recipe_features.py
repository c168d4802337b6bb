"""The recipe `jetfeatures`: a jet as a few numbers; a perceptron."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Table
from clew.data.transforms import Compute, Standard, Transform
from clew.recipes.jets import inputs
from clew.recipes.jets.base import Tagger
from clew.recipes.jets.settings import FeatureSettings

if TYPE_CHECKING:
    from torch import nn

    from clew import Batch


class JetFeatures(Tagger):
    """Jet tagging by shapes."""

    Config = FeatureSettings
    defaults = {
        "train": {
            "epochs": 30,
            "batch_size": 256,
            "optimizer": {"lr": 2e-3, "lr_batch": 256},
            "schedule": {"name": "cosine"},
        }
    }
    columns = ("features", inputs.LABEL)

    def transforms(self) -> Sequence[Transform]:
        """The features too, each a column, scaled by mean and standard deviation of all jets that are prepared."""
        names = self._names()
        made = [Compute(column=n, expression=t) for n, t in zip(names, self.config.features.inputs, strict=True)]
        return [*super().transforms(), *made, Standard(columns=names)]

    def prepare(self, events: Table) -> Table:
        columns = [events.fixed(name).astype(np.float32) for name in self._names()]
        return inputs.sample(events, self.config.data, {"features": np.stack(columns, axis=1)})

    def passthrough_columns(self) -> Mapping[str, Sequence[str]]:
        return {"features": self._names()}

    def model(self) -> nn.Module:
        from clew.recipes.jets.network import Perceptron

        return Perceptron(len(self.config.features.inputs), len(self.config.data.classes), self.config.model)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["features"])

    def graph_capacity(self, batch: Batch, precision: str) -> Mapping[str, int] | None:
        return {}

    def _names(self) -> tuple[str, ...]:
        return tuple(f"feature_{number}" for number in range(len(self.config.features.inputs)))
