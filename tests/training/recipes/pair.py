"""Two lines with one optimiser each, trained together or one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from clew import Batch, Recipe, Section, Table


class Settings(Section):
    """Which losses `step` gives, and which optimisers there are."""

    losses: tuple[Literal["a", "b"], ...] = ("a", "b")
    optimizers: tuple[Literal["a", "b"], ...] = ("a", "b")
    alternate: bool = False
    """Whether `step` is a generator."""


class Pair(Recipe):
    """Both predict y from x; b in absolute difference."""

    Config = Settings
    columns = ("x", "y")

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        return nn.ModuleDict({"a": nn.Linear(3, 1), "b": nn.Linear(3, 1)})

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        assert isinstance(model, nn.ModuleDict)
        return {name: line(batch["x"]).squeeze(1) for name, line in model.items()}

    def optimizers(self, model: nn.Module) -> Mapping[str, Any]:
        assert isinstance(model, nn.ModuleDict)
        return {name: model[name].parameters() for name in self.config.optimizers}

    def loss(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        return (outputs["a"] - batch["y"]) ** 2

    def step(self, model: nn.Module, batch: Batch) -> Any:
        outputs = self.forward(model, batch)
        losses = {"a": self.loss(outputs, batch), "b": (outputs["b"] - batch["y"]).abs()}
        chosen = {name: losses[name] for name in self.config.losses}
        return iter(chosen.items()) if self.config.alternate else chosen
