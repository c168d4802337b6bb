"""Packed training computes what separate trainings compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clew import Batch, Recipe, Section, Table
from clew.train.config import TrainConfig
from clew.train.control import Schedule
from clew.train.engine import Engine
from clew.train.packed import group
from clew.train.packed.step import PackEngine
from clew.train.strategies import Strategy

CPU = torch.device("cpu")


class Settings(Section):
    norm: bool = False
    scale: float = 1.0
    dropout: float = 0.0
    odd: bool = False


class Curve(Recipe):
    """y from x in double precision; `scale` weighs a part of the loss."""

    Config = Settings
    columns = ("x", "y")

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        norm = [nn.BatchNorm1d(6), nn.LayerNorm(6)] if self.config.norm else []
        # a bias before a norm has no gradient but rounding, and Adam makes whole steps of that
        layers = [nn.Linear(3, 6, bias=not norm), *norm, nn.Tanh(), nn.Dropout(self.config.dropout), nn.Linear(6, 1)]
        return Odd(layers).double() if self.config.odd else nn.Sequential(*layers).double()

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        far: Tensor = (outputs[:, 0] - batch["y"]) ** 2
        found: Tensor = far * self.config.scale + outputs[:, 0].abs()
        return found


class Odd(nn.Module):
    """Reads the number of events off the shape: only vmap understands it."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.layers(x).reshape(x.shape[0], 1)


def batches(count: int, *, weights: bool = False) -> list[Batch]:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(count):
        x, y, w = (torch.from_numpy(rng.normal(size=shape)) for shape in ((16, 3), (16,), (16,)))
        found.append(Batch(16, {"x": x, "y": y}, w.abs() if weights else None))
    return found


def apart(recipe: Recipe, config: TrainConfig, steps: Sequence[Batch]) -> dict[str, Tensor]:
    """A training of its own."""
    model = group.model_of(recipe, config)
    engine, schedule = Engine(recipe, model, config, Strategy(), CPU), Schedule(config, len(steps), len(steps))
    for number, batch in enumerate(steps):
        engine.rate(schedule.at(number))
        engine.step([batch])
    return model.state_dict()


def together(recipes: Sequence[Recipe], configs: Sequence[TrainConfig], steps: Sequence[Batch]) -> PackEngine:
    models = [group.model_of(recipe, config) for recipe, config in zip(recipes, configs, strict=True)]
    engine = PackEngine(recipes, models, configs, CPU)
    engine.prepare(steps[0])
    schedules = [Schedule(config, len(steps), len(steps)) for config in configs]
    factors = torch.tensor([[each.at(n) for each in schedules] for n in range(len(steps))], dtype=torch.float64)
    plan = engine.plan(0, factors)
    for number, batch in enumerate(steps):
        engine.step(batch, plan, number)
    return engine


OPTIMIZERS: dict[str, list[dict[str, Any]]] = {
    "sgd": [{"name": "sgd", "lr": lr, "weight_decay": wd} for lr, wd in ((0.1, 0), (0.01, 0.1), (0.03, 0.01))],
    "momentum": [
        {"name": "sgd", "lr": 0.02, "parameters": {"momentum": m, "dampening": d}}
        for m, d in ((0.9, 0), (0.5, 0.1), (0.0, 0))
    ],
    "nesterov": [
        {"name": "sgd", "lr": lr, "parameters": {"momentum": 0.9, "nesterov": True}} for lr in (0.1, 0.01, 1e-3)
    ],
    "adam": [
        {"name": "adam", "lr": lr, "weight_decay": wd, "parameters": {"betas": betas}}
        for lr, wd, betas in ((0.1, 0, (0.9, 0.999)), (0.01, 0.1, (0.8, 0.99)), (0.03, 0.0, (0.9, 0.999)))
    ],
    "adamw": [{"name": "adamw", "lr": lr, "weight_decay": wd} for lr, wd in ((0.1, 0.01), (0.01, 0.3), (0.03, 0))],
}


@pytest.mark.parametrize("plain", [False, True], ids=["fused", "written"])
@pytest.mark.parametrize("odd", [False, True], ids=["lifted", "vmap"])
@pytest.mark.parametrize("norm", [False, True], ids=["", "norm"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_pack_learns_what_separate_trainings_learn(
    name: str, norm: bool, odd: bool, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = PackEngine._ready

    def written(engine: PackEngine) -> None:
        ready(engine)
        engine.optimizer.plain = True

    if plain:  # as on a device
        monkeypatch.setattr(PackEngine, "_ready", written)
    steps = batches(20, weights=True)
    scales = (1.0, 1.0, 1.0) if not odd else (1.0, 2.0, 0.5)
    recipes = [Curve(Settings(norm=norm, odd=odd, scale=scale)) for scale in scales]
    more: list[dict[str, Any]] = [{"clip": 0.5}, {"schedule": {"name": "cosine"}}, {"schedule": {"warmup": 0.5}}]
    configs = [
        TrainConfig.model_validate({"batch_size": 16, "seed": n, "optimizer": each, **more[n]})
        for n, each in enumerate(OPTIMIZERS[name])
    ]
    engine = together(recipes, configs, steps)
    assert engine.fast == ("" if odd else "layers+loss")
    for row, (recipe, config) in enumerate(zip(recipes, configs, strict=True)):
        alone, packed = apart(recipe, config, steps), engine.stack.state_dict(row)
        assert set(alone) == set(packed)
        for key, tensor in alone.items():
            assert torch.allclose(packed[key].double(), tensor.double(), rtol=0, atol=1e-10), key
