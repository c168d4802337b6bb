"""The recipe `jetfeatures`: a jet is a small number of features; the network is a multilayer perceptron."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Table
from clew.data.transforms import Compute, Standard, Transform
from clew.recipes.jets import inputs
from clew.recipes.jets.settings import JetFeaturesConfig
from clew.recipes.jets.tagging_recipe import JetTaggingRecipe

if TYPE_CHECKING:
    from torch import nn

    from clew import Batch


class JetFeatures(JetTaggingRecipe):
    """Jet tagging from shape variables."""

    Config = JetFeaturesConfig
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
        """The transforms of all jet recipes, then one column per feature, scaled by mean and standard deviation."""
        names = self._names()
        features = [Compute(column=n, expression=t) for n, t in zip(names, self.config.features.inputs, strict=True)]
        return [*super().transforms(), *features, Standard(columns=names)]

    def prepare(self, events: Table) -> Table:
        columns = [events.fixed(name).astype(np.float32) for name in self._names()]
        return inputs.make_samples(events, self.config.data, {"features": np.stack(columns, axis=1)})

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
