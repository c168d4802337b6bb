"""Integers only: every sum is exact, so that any two computations on the same events must agree to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from clew import Batch, Recipe, Table
from clew.metrics import F1, Binned, Mean, Metric, Ratio, Roc


class Whole(Recipe):
    """Predicts y from x; the output for `hits` (ragged) is doubled."""

    columns = ("x", "y", "hits")

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        return nn.Linear(3, 1)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return {"said": model(batch["x"]).squeeze(1), "double": 2 * batch["hits"]}

    def loss(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        return (outputs["said"] - batch["y"]) ** 2

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        return Table({"said": outputs["said"], "double": samples.ragged("hits").share(outputs["double"])})

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        predicted, true, weights = objects.fixed("said"), samples.fixed("y"), samples.weights
        binned = Binned.of(true, predicted > 0, np.arange(-8, 9, 4), axis="y", label="share", weights=weights)
        return {
            "near": Ratio.of(abs(predicted - true) < 3, weights),
            "f1": F1.of(predicted > 0, true > 0, weights),
            "auc": Roc.of(1 / (1 + np.exp(-predicted)), true > 0, weights),
            "hits": Mean(float(objects.ragged("double").values.sum()), float(len(samples))),
            "binned": binned,
        }
