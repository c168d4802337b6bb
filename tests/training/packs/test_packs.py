"""Packed training computes what separate trainings compute."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import clew
from clew import Batch, Dataset, Recipe, Run, Section, Table
from clew.core.config import to_yaml
from clew.core.files import write_text
from clew.errors import ConfigError, StoppedError
from clew.recipe import find
from clew.training.api import resume
from clew.training.config import TrainConfig
from clew.training.engine import Engine
from clew.training.packs import grouping
from clew.training.packs.dropout import Keys, LaneDropout, threshold_of
from clew.training.packs.engine import PackEngine
from clew.training.packs.stacked_layers import Product
from clew.training.packs.stacked_weights import signature
from clew.training.schedule import Schedule
from clew.training.strategies import Strategy

BEND = str(Path(__file__).parents[2] / "tuning" / "recipes" / "bend.py")
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
    model = grouping.model_of(recipe, config)
    engine, schedule = Engine(recipe, model, config, Strategy(), CPU), Schedule(config, len(steps), len(steps))
    for number, batch in enumerate(steps):
        engine.rate(schedule.at(number))
        engine.step([batch])
    return model.state_dict()


def together(recipes: Sequence[Recipe], configs: Sequence[TrainConfig], steps: Sequence[Batch]) -> PackEngine:
    models = [grouping.model_of(recipe, config) for recipe, config in zip(recipes, configs, strict=True)]
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
    for row, (own, config) in enumerate(zip(recipes, configs, strict=True)):
        alone, packed = apart(own, config, steps), engine.stack.state_dict(row)
        assert set(alone) == set(packed)
        for key, tensor in alone.items():
            assert torch.allclose(packed[key].double(), tensor.double(), rtol=0, atol=1e-10), key


def test_dropout_of_a_model_does_not_depend_on_the_company_it_is_in() -> None:
    steps = batches(12)
    recipes = [Curve(Settings(dropout=rate)) for rate in (0.0, 0.3, 0.6, 0.3)]
    configs = [TrainConfig.model_validate({"batch_size": 16, "seed": n, "optimizer": {"lr": 0.03}}) for n in range(4)]
    whole = together(recipes, configs, steps)
    for row in range(4):
        alone = together(recipes[row : row + 1], configs[row : row + 1], steps).stack.state_dict(0)
        for name, tensor in whole.stack.state_dict(row).items():
            assert torch.allclose(tensor, alone[name], rtol=0, atol=1e-10), (row, name)
    plain = apart(recipes[0], configs[0], steps)
    assert torch.allclose(whole.stack.state_dict(0)["0.weight"], plain["0.weight"], rtol=0, atol=1e-10)


def test_dropout_drops_as_much_as_it_should() -> None:
    layer = LaneDropout(0)
    rates, seeds = (0.0, 0.1, 0.5, 0.9), (1, 2, 3, 3)
    found = [threshold_of(rate) for rate in rates]
    layer.threshold = torch.tensor([t for t, _ in found], dtype=torch.int32)
    layer.scale = torch.tensor([s for _, s in found])
    keys, kept = Keys(seeds, 2), torch.zeros(4)
    for step in range(20):
        layer.key = keys.at(step)[0]
        kept += (layer(torch.ones(4, 100, 100)) > 0).float().mean((1, 2)) / 20
    assert kept.tolist() == pytest.approx([1.0, 0.9, 0.5, 0.1], abs=0.005)
    layer.key = keys.at(0)[0]
    values = layer(torch.ones(4, 1000, 100))
    assert values.mean((1, 2)).tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0], abs=0.03)
    one, other = (values[row] > 0 for row in (2, 3))
    assert torch.equal(one | other, one)  # the same seed drops the same, and more at a higher rate
    columns = torch.corrcoef((values[2, :, :20] > 0).float().T) - torch.eye(20)
    assert columns.abs().max() < 0.15  # neighbours are independent


def test_those_that_are_left_go_on_as_they_were() -> None:
    steps = batches(20, weights=True)
    recipes = [Curve(Settings(norm=True, dropout=0.2)) for _ in range(4)]
    made = {"batch_size": 16, "optimizer": {"name": "adamw", "lr": 0.02, "weight_decay": 0.1}}
    configs = [TrainConfig.model_validate({**made, "seed": n}) for n in range(4)]
    whole = together(recipes, configs, steps)
    engine = PackEngine(recipes, [grouping.model_of(r, c) for r, c in zip(recipes, configs, strict=True)], configs, CPU)
    engine.prepare(steps[0])
    plan = engine.plan(0, torch.ones((20, 4), dtype=torch.float64))
    for number in range(10):
        engine.step(steps[number], plan, number)
    engine.stack.weights[1] = float("nan")  # it must touch nobody else
    engine.step(steps[10], plan, 10)
    engine.keep(torch.tensor([0, 3]))
    plan = engine.plan(11, torch.ones((9, 2), dtype=torch.float64))
    for number in range(11, 20):
        engine.step(steps[number], plan, number)
    for row, before in enumerate((0, 3)):
        for name, tensor in whole.stack.state_dict(before).items():
            assert torch.allclose(engine.stack.state_dict(row)[name], tensor, rtol=0, atol=1e-10), name


def test_the_linear_layer_of_devices_has_the_right_gradients() -> None:
    rows, weight, bias = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 5, 4), (3, 2, 4), (3, 2)))
    given = [each.requires_grad_() for each in (rows, weight, bias)]
    assert torch.autograd.gradcheck(Product.apply, given)


def test_what_cannot_be_packed_is_told() -> None:
    plain = {"batch_size": 16}
    odd: dict[str, dict[str, Any]] = {
        "train.ema is set": {"ema": 0.9},
        "train.precision is bf16": {"precision": "bf16"},
        "train.accumulate is 2": {"accumulate": 2},
        "train.optimizer.name is rprop": {"optimizer": {"name": "rprop"}},
        "train.optimizer.parameters has 'amsgrad'": {"optimizer": {"parameters": {"amsgrad": True}}},
    }
    assert grouping.refusal(Curve(), TrainConfig.model_validate(plain)) == ""
    for told, settings in odd.items():
        assert grouping.refusal(Curve(), TrainConfig.model_validate({**plain, **settings})).startswith(told)


def test_a_number_that_the_network_keeps_to_itself_makes_another_shape() -> None:
    one, other = nn.Sequential(nn.LeakyReLU(0.1)), nn.Sequential(nn.LeakyReLU(0.2))
    assert signature(one) != signature(other)
    assert signature(nn.Sequential(nn.Dropout(0.1))) == signature(nn.Sequential(nn.Dropout(0.2)))


def test_an_ensemble_gives_mean_and_spread(flat: Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 50, "optimizer": {"lr": 0.05}, "threads": 1}
    run = clew.train(BEND, flat, output=tmp_path / "all", replicas=5, seed=7, **settings)
    members = run.replicas()
    assert [each.config().data["train"]["seed"] for each in members] == [7, 8, 9, 10, 11]
    last = run.last("validation") or {}
    losses = [min(r["metrics"]["loss"] for r in each.records(kind="validation")) for each in members]
    assert last["metrics"]["loss"] == pytest.approx(np.mean(losses))
    assert last["spread"]["loss"] == pytest.approx(np.std(losses, ddof=1))
    whole = clew.predict(run, split="val")
    each = [clew.predict(member, split="val") for member in members]
    assert isinstance(whole, Table)
    name = next(name for name in whole if name.endswith("_spread"))
    values = np.stack([table.fixed(name.removesuffix("_spread")) for table in each if isinstance(table, Table)])
    assert np.allclose(whole.fixed(name.removesuffix("_spread")), values.mean(0), atol=1e-5)
    assert np.allclose(whole.fixed(name), values.std(0, ddof=1), atol=1e-5)
    with pytest.raises(ConfigError, match="an ensemble of 5"):
        clew.evaluate(run)


def test_an_ensemble_of_a_model_typed_in_begins_anew_for_every_member(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    run = clew.train(
        nn.Linear(3, 1), (x, x.sum(1)), output=tmp_path / "run", replicas=3, epochs=1, batch_size=50, threads=1
    )
    first = [load_file(each.checkpoint("last"))["weight"] for each in run.replicas()]
    assert not torch.allclose(first[0], first[1], atol=1e-3)


def test_a_stopped_ensemble_goes_on(flat: Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 400, "batch_size": 10, "optimizer": {"lr": 0.001}, "threads": 1}
    kind = find(BEND)
    slow = kind(kind.Config.model_validate({"pause": 0.01}))
    path = tmp_path / "all"

    def stop() -> None:
        while not any(Run(each).last("step") for each in path.glob("replicas/*")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(StoppedError, match="--resume"):
        clew.train(slow, flat, output=path, replicas=4, **settings)
    thread.join()
    run = Run.open(path)
    assert run.state == "stopped" and {each.state for each in run.replicas()} == {"stopped"}
    settled = run.config().data
    epochs = 1 + max((each.last("step") or {"epoch": 0})["epoch"] for each in run.replicas())
    write_text(run.config_file, to_yaml({**settled, "train": {**settled["train"], "epochs": epochs}}))
    resume(run)
    assert run.state == "finished" and len(run.replicas()) == 4
    assert all(list(each.records(kind="resume")) for each in run.replicas())
