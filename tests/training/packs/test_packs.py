"""A pack computes what separate trainings compute."""

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
from clew.runs.listing import list_run
from clew.training.api import resume
from clew.training.config import TrainConfig
from clew.training.engine import Engine
from clew.training.packs import grouping
from clew.training.packs.dropout import DropoutKeys, StackedDropout, dropout_threshold
from clew.training.packs.engine import PackEngine
from clew.training.packs.stacked_layers import LinearFunction
from clew.training.packs.stacked_weights import model_signature
from clew.training.schedule import Schedule
from clew.training.strategies import Strategy

BEND = str(Path(__file__).parents[2] / "tuning" / "recipes" / "bend.py")
CPU = torch.device("cpu")


class CurveConfig(Section):
    norm: bool = False
    scale: float = 1.0
    dropout: float = 0.0
    needs_vmap: bool = False


class CurveRecipe(Recipe):
    """Predicts y from x in double precision; `scale` is the weight of a part of the loss."""

    Config = CurveConfig
    columns = ("x", "y")

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        norm = [nn.BatchNorm1d(6), nn.LayerNorm(6)] if self.config.norm else []
        # the gradient of a bias before a norm is only rounding errors, of which Adam makes full steps
        layers = [nn.Linear(3, 6, bias=not norm), *norm, nn.Tanh(), nn.Dropout(self.config.dropout), nn.Linear(6, 1)]
        return NeedsVmap(layers).double() if self.config.needs_vmap else nn.Sequential(*layers).double()

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        squared: Tensor = (outputs[:, 0] - batch["y"]) ** 2
        loss: Tensor = squared * self.config.scale + outputs[:, 0].abs()
        return loss


class NeedsVmap(nn.Module):
    """Uses the first axis of its input as the number of events, so it works only with vmap."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.layers(x).reshape(x.shape[0], 1)


def batches(count: int, *, weights: bool = False) -> list[Batch]:
    rng = np.random.default_rng(3)
    batch_list = []
    for _ in range(count):
        x, y, w = (torch.from_numpy(rng.normal(size=shape)) for shape in ((16, 3), (16,), (16,)))
        batch_list.append(Batch(16, {"x": x, "y": y}, w.abs() if weights else None))
    return batch_list


def train_separately(recipe: Recipe, config: TrainConfig, steps: Sequence[Batch]) -> dict[str, Tensor]:
    """Train a model alone, and return its weights."""
    model = grouping.initial_model(recipe, config)
    engine, schedule = Engine(recipe, model, config, Strategy(), CPU), Schedule(config, len(steps), len(steps))
    for number, batch in enumerate(steps):
        engine.rate(schedule.at(number))
        engine.step([batch])
    return model.state_dict()


def train_packed(recipes: Sequence[Recipe], configs: Sequence[TrainConfig], steps: Sequence[Batch]) -> PackEngine:
    models = [grouping.initial_model(recipe, config) for recipe, config in zip(recipes, configs, strict=True)]
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


@pytest.mark.slow
@pytest.mark.parametrize("unfused", [False, True], ids=["fused", "unfused"])
@pytest.mark.parametrize("needs_vmap", [False, True], ids=["stacked", "vmap"])
@pytest.mark.parametrize("norm", [False, True], ids=["", "norm"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_pack_trains_like_separate_trainings(
    name: str, norm: bool, needs_vmap: bool, unfused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = PackEngine.prepare_step

    def prepare_unfused(engine: PackEngine) -> None:
        prepare(engine)
        engine.optimizer.unfused = True

    if unfused:  # as on a device
        monkeypatch.setattr(PackEngine, "prepare_step", prepare_unfused)
    steps = batches(20, weights=True)
    scales = (1.0, 1.0, 1.0) if not needs_vmap else (1.0, 2.0, 0.5)
    recipes = [CurveRecipe(CurveConfig(norm=norm, needs_vmap=needs_vmap, scale=scale)) for scale in scales]
    extra: list[dict[str, Any]] = [{"clip": 0.5}, {"schedule": {"name": "cosine"}}, {"schedule": {"warmup": 0.5}}]
    configs = [
        TrainConfig.model_validate({"batch_size": 16, "seed": n, "optimizer": each, **extra[n]})
        for n, each in enumerate(OPTIMIZERS[name])
    ]
    engine = train_packed(recipes, configs, steps)
    assert engine.fast_paths == ("" if needs_vmap else "layers+loss")
    for row, (recipe, config) in enumerate(zip(recipes, configs, strict=True)):
        alone, packed = train_separately(recipe, config, steps), engine.stack.state_dict(row)
        assert set(alone) == set(packed)
        for key, tensor in alone.items():
            assert torch.allclose(packed[key].double(), tensor.double(), rtol=0, atol=1e-10), key


def test_dropout_of_a_member_does_not_depend_on_the_other_members() -> None:
    steps = batches(12)
    recipes = [CurveRecipe(CurveConfig(dropout=rate)) for rate in (0.0, 0.3, 0.6, 0.3)]
    configs = [TrainConfig.model_validate({"batch_size": 16, "seed": n, "optimizer": {"lr": 0.03}}) for n in range(4)]
    packed = train_packed(recipes, configs, steps)
    for row in range(4):
        alone = train_packed(recipes[row : row + 1], configs[row : row + 1], steps).stack.state_dict(0)
        for name, tensor in packed.stack.state_dict(row).items():
            assert torch.allclose(tensor, alone[name], rtol=0, atol=1e-10), (row, name)
    plain = train_separately(recipes[0], configs[0], steps)
    assert torch.allclose(packed.stack.state_dict(0)["0.weight"], plain["0.weight"], rtol=0, atol=1e-10)


def test_dropout_drops_the_configured_fraction() -> None:
    layer = StackedDropout(0)
    rates, seeds = (0.0, 0.1, 0.5, 0.9), (1, 2, 3, 3)
    thresholds = [dropout_threshold(rate) for rate in rates]
    layer.threshold = torch.tensor([t for t, _ in thresholds], dtype=torch.int32)
    layer.scale = torch.tensor([s for _, s in thresholds])
    keys, fraction = DropoutKeys(seeds, 2), torch.zeros(4)
    for step in range(20):
        layer.key = keys.at(step)[0]
        fraction += (layer(torch.ones(4, 100, 100)) > 0).float().mean((1, 2)) / 20
    assert fraction.tolist() == pytest.approx([1.0, 0.9, 0.5, 0.1], abs=0.005)
    layer.key = keys.at(0)[0]
    values = layer(torch.ones(4, 1000, 100))
    assert values.mean((1, 2)).tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0], abs=0.03)
    one, other = (values[row] > 0 for row in (2, 3))
    assert torch.equal(one | other, one)  # the same seed drops the same values, and more at a higher rate
    columns = torch.corrcoef((values[2, :, :20] > 0).float().T) - torch.eye(20)
    assert columns.abs().max() < 0.15  # neighbours are independent


@pytest.mark.slow
def test_remaining_members_are_not_affected_by_removed_ones() -> None:
    steps = batches(20, weights=True)
    recipes = [CurveRecipe(CurveConfig(norm=True, dropout=0.2)) for _ in range(4)]
    settings = {"batch_size": 16, "optimizer": {"name": "adamw", "lr": 0.02, "weight_decay": 0.1}}
    configs = [TrainConfig.model_validate({**settings, "seed": n}) for n in range(4)]
    packed = train_packed(recipes, configs, steps)
    engine = PackEngine(
        recipes, [grouping.initial_model(r, c) for r, c in zip(recipes, configs, strict=True)], configs, CPU
    )
    engine.prepare(steps[0])
    plan = engine.plan(0, torch.ones((20, 4), dtype=torch.float64))
    for number in range(10):
        engine.step(steps[number], plan, number)
    engine.stack.weights[1] = float("nan")  # it must not affect other members
    engine.step(steps[10], plan, 10)
    engine.keep_members(torch.tensor([0, 3]))
    plan = engine.plan(11, torch.ones((9, 2), dtype=torch.float64))
    for number in range(11, 20):
        engine.step(steps[number], plan, number)
    for row, before in enumerate((0, 3)):
        for name, tensor in packed.stack.state_dict(before).items():
            assert torch.allclose(engine.stack.state_dict(row)[name], tensor, rtol=0, atol=1e-10), name


def test_the_linear_function_for_gpus_has_the_right_gradients() -> None:
    rows, weight, bias = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 5, 4), (3, 2, 4), (3, 2)))
    arguments = [tensor.requires_grad_() for tensor in (rows, weight, bias)]
    assert torch.autograd.gradcheck(LinearFunction.apply, arguments)


def test_unsupported_settings_are_refused_with_a_reason() -> None:
    plain = {"batch_size": 16}
    refused: dict[str, dict[str, Any]] = {
        "train.ema is set": {"ema": 0.9},
        "train.precision is bf16": {"precision": "bf16"},
        "train.accumulate is 2": {"accumulate": 2},
        "train.optimizer.name is rprop": {"optimizer": {"name": "rprop"}},
        "train.optimizer.parameters has 'amsgrad'": {"optimizer": {"parameters": {"amsgrad": True}}},
    }
    assert grouping.refusal_reason(CurveRecipe(), TrainConfig.model_validate(plain)) == ""
    for reason, settings in refused.items():
        assert grouping.refusal_reason(CurveRecipe(), TrainConfig.model_validate({**plain, **settings})).startswith(
            reason
        )


def test_models_with_other_settings_of_layers_have_another_signature() -> None:
    one, other = nn.Sequential(nn.LeakyReLU(0.1)), nn.Sequential(nn.LeakyReLU(0.2))
    assert model_signature(one) != model_signature(other)
    assert model_signature(nn.Sequential(nn.Dropout(0.1))) == model_signature(nn.Sequential(nn.Dropout(0.2)))


@pytest.mark.filterwarnings("ignore::clew.runs.saved_code.CodeWarning")  # another recipe prepared `flat`
def test_an_ensemble_gives_mean_and_spread(flat: Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 50, "optimizer": {"lr": 0.05}, "threads": 1}
    run = clew.train(BEND, flat, output=tmp_path / "all", replicas=5, seed=7, **settings)
    members = run.replicas()
    assert [each.config().data["train"]["seed"] for each in members] == [7, 8, 9, 10, 11]
    assert all(list_run(each).times.load_seconds for each in members)
    last = run.last("validation") or {}
    losses = [min(r["metrics"]["loss"] for r in each.records(kind="validation")) for each in members]
    assert last["metrics"]["loss"] == pytest.approx(np.mean(losses))
    assert last["spread"]["loss"] == pytest.approx(np.std(losses, ddof=1))
    ensemble = clew.predict(run, split="val")
    predictions = [clew.predict(member, split="val") for member in members]
    assert isinstance(ensemble, Table)
    name = next(name for name in ensemble if name.endswith("_spread"))
    values = np.stack([table.fixed(name.removesuffix("_spread")) for table in predictions if isinstance(table, Table)])
    assert np.allclose(ensemble.fixed(name.removesuffix("_spread")), values.mean(0), atol=1e-5)
    assert np.allclose(ensemble.fixed(name), values.std(0, ddof=1), atol=1e-5)
    with pytest.raises(ConfigError, match="an ensemble of 5"):
        clew.evaluate(run)


def test_an_ensemble_of_a_model_object_initialises_every_member(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    run = clew.train(
        nn.Linear(3, 1), (x, x.sum(1)), output=tmp_path / "run", replicas=3, epochs=1, batch_size=50, threads=1
    )
    first = [load_file(each.checkpoint("last"))["weight"] for each in run.replicas()]
    assert not torch.allclose(first[0], first[1], atol=1e-3)


@pytest.mark.filterwarnings("ignore::clew.runs.saved_code.CodeWarning")  # another recipe prepared `flat`
def test_a_stopped_ensemble_resumes(flat: Dataset, tmp_path: Path) -> None:
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
