"""Two adversarial networks: a generator of values and a critic that separates them from the true ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from clew import Batch, Recipe, Table
from clew.metrics import Mean, Metric


class Game(Recipe):
    """The critic is trained twice per step, the generator once; the noise of the generator is the column x."""

    columns = ("x", "y")
    defaults = {"train": {"best": {"metric": "spread", "direction": "minimize"}}}

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        critic = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        return nn.ModuleDict({"maker": nn.Linear(3, 1), "critic": critic})

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        assert isinstance(model, nn.ModuleDict)
        return model["maker"](batch["x"])

    def optimizers(self, model: nn.Module) -> Mapping[str, Any]:
        assert isinstance(model, nn.ModuleDict)
        slow = torch.optim.SGD(model["maker"].parameters(), lr=0.01)
        return {"maker": slow, "critic": model["critic"].parameters()}

    def step(self, model: nn.Module, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        assert isinstance(model, nn.ModuleDict)
        critic = model["critic"]
        for _ in range(2):
            generated = self.forward(model, batch).detach()
            yield "critic", (softplus(-critic(batch["y"][:, None])) + softplus(critic(generated))).mean()
        yield "maker", softplus(-critic(self.forward(model, batch))).mean()

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        return {"spread": Mean(float((outputs["output"] ** 2).sum()), float(len(samples)))}
