"""One step: optimisers by name, their rates, and how far a gradient may go."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from clew import Dataset
from clew.dataset.batch import to_batch
from clew.errors import ConfigError, RecipeError
from clew.recipe import Loss
from clew.train.config import OptimizerConfig, TrainConfig
from clew.train.engine import Engine, as_loss, make_optimizer, schedule
from clew.train.strategies.single import Single
from tests.train import recipe


def engine(**settings: Any) -> Engine:
    torch.manual_seed(0)
    line = recipe("line")
    return Engine(line, line.model(), TrainConfig.model_validate(settings), Single())


def moved_by_a_step(data: Dataset, **settings: Any) -> float:
    """How far all parameters together go in one step."""
    made = engine(**settings)
    before = torch.cat([p.detach().flatten().clone() for p in made.model.parameters()])
    made.step(to_batch(data.read("train")))
    after = torch.cat([p.detach().flatten() for p in made.model.parameters()])
    return float((after - before).norm())


def test_a_constant_rate_stays() -> None:
    assert {schedule("constant", step, 10) for step in range(11)} == {1.0}


def test_a_cosine_falls_from_one_to_a_hundredth() -> None:
    rates = [schedule("cosine", step, 100) for step in range(101)]
    assert [rates[0], rates[50], rates[100]] == pytest.approx([1.0, 0.505, 0.01])
    assert rates[25] == pytest.approx(0.01 + 0.99 * (1 + math.sqrt(0.5)) / 2)
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(("name", "kind"), [("adam", "Adam"), ("adamw", "AdamW"), ("sgd", "SGD")])
def test_optimisers_have_the_settings_they_were_given(name: str, kind: str) -> None:
    config = OptimizerConfig.model_validate({"name": name, "lr": 0.3, "weight_decay": 0.02})
    made = make_optimizer([torch.nn.Parameter(torch.ones(2))], config)
    assert type(made).__name__ == kind
    assert (made.param_groups[0]["lr"], made.param_groups[0]["weight_decay"]) == (0.3, 0.02)


def test_momentum_is_for_sgd_alone() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2))]
    assert make_optimizer(parameters, OptimizerConfig(name="sgd", momentum=0.9)).param_groups[0]["momentum"] == 0.9
    for name in ("adam", "adamw"):
        with pytest.raises(ConfigError, match=f"momentum belongs to sgd, not to {name}"):
            make_optimizer(parameters, OptimizerConfig.model_validate({"name": name, "momentum": 0.9}))


@pytest.mark.parametrize("wrong", [{"name": "lion"}, {"lr": 0}, {"weight_decay": -1}, {"momentum": 1}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OptimizerConfig.model_validate(wrong)


def test_clipping_limits_the_norm_of_the_step(flat: Dataset) -> None:
    plain = {"name": "sgd", "lr": 1.0}
    free = moved_by_a_step(flat, optimizer=plain)
    assert free > 0.2
    assert moved_by_a_step(flat, optimizer=plain, clip=0.1) == pytest.approx(0.1, rel=1e-4)
    assert moved_by_a_step(flat, optimizer=plain, clip=2 * free) == pytest.approx(free, rel=1e-6)


def test_the_rate_scales_the_step(flat: Dataset) -> None:
    made = engine(optimizer={"name": "sgd", "lr": 0.5})
    made.rate(0.1)
    assert made.optimizers["loss"].param_groups[0]["lr"] == pytest.approx(0.05)
    made.rate(1.0)
    assert made.optimizers["loss"].param_groups[0]["lr"] == 0.5


def test_a_step_returns_the_sum_and_the_weight(flat: Dataset) -> None:
    samples = flat.read("train")
    (total, weight), *rest = engine().step(to_batch(samples)).tolist()
    assert not rest
    assert weight == len(samples)
    line = recipe("line")
    torch.manual_seed(0)
    each = line.loss(line.forward(line.model(), to_batch(samples)), to_batch(samples))
    assert isinstance(each, torch.Tensor)
    assert total == pytest.approx(float(each.detach().sum()), rel=1e-6)


def test_a_loss_of_another_shape_is_refused(flat: Dataset) -> None:
    batch = to_batch(flat.read("train").slice(0, 4))
    with pytest.raises(RecipeError, match=r"loss\(\) returned shape \(4, 1\) for 4 events"):
        as_loss(torch.ones(4, 1), batch)
    assert as_loss(Loss(torch.tensor(2.0), 7.0), batch).weight == 7
    assert as_loss(torch.tensor(2.0), batch).total == 8


def test_a_borrowed_batch_weighs_nothing(flat: Dataset) -> None:
    batch = to_batch(flat.read("train").slice(0, 1))
    batch.counts = False
    for loss in (torch.ones(1), torch.tensor(3.0), Loss(torch.tensor(2.0), 7.0)):
        total, weight = as_loss(loss, batch)
        assert (float(total), weight) == (0, 0)
