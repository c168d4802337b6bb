"""One step: optimisers by name, their rates, and clipping."""

from __future__ import annotations

import inspect
import math
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from clew import Table
from clew.data.dataset.batch import to_batch
from clew.errors import ConfigError, RecipeError
from clew.recipe import Loss, Recipe, TakenSteps
from clew.runs.timeline import PHASES, read_trace
from clew.training.config import OPTIMIZERS, OptimizerConfig, TrainConfig
from clew.training.engine import Engine, WeightAverage, as_loss
from clew.training.optimizer import make_optimizer
from clew.training.schedule import Schedule
from clew.training.strategies import Strategy
from clew.training.timeline_writer import TimelineWriter
from tests.training import recipe


def engine(**settings: Any) -> Engine:
    torch.manual_seed(0)
    line = recipe("line")
    return Engine(line, line.model(), TrainConfig.model_validate(settings), Strategy(), torch.device("cpu"))


def moved_by_a_step(samples: Table, **settings: Any) -> float:
    """The norm of the change of all parameters in one step."""
    new_engine = engine(**settings)
    before = torch.cat([p.detach().flatten().clone() for p in new_engine.model.parameters()])
    new_engine.step([to_batch(samples)])
    after = torch.cat([p.detach().flatten() for p in new_engine.model.parameters()])
    return float((after - before).norm())


def optimizer(**settings: Any) -> torch.optim.Optimizer:
    config = TrainConfig.model_validate({"optimizer": settings})
    return make_optimizer([torch.nn.Parameter(torch.ones(2))], config)


def rates(steps: int, *, of: int | None = None, each: int = 1, **settings: Any) -> list[float]:
    schedule = Schedule(TrainConfig.model_validate({"schedule": settings}), of or steps, each)
    return [schedule.at(step) for step in range(steps)]


def test_a_constant_rate_stays() -> None:
    assert {rates(10, name="constant")[step] for step in range(10)} == {1.0}


def test_a_cosine_falls_from_one_to_a_hundredth() -> None:
    factors = rates(101, of=100, name="cosine")
    assert [factors[0], factors[50], factors[100]] == pytest.approx([1.0, 0.505, 0.01])
    assert factors[25] == pytest.approx(0.01 + 0.99 * (1 + math.sqrt(0.5)) / 2)
    assert factors == sorted(factors, reverse=True)


def test_a_warm_up_comes_before_any_schedule() -> None:
    factors = rates(100, name="linear", warmup=0.1, floor=0.0)
    assert factors[:10] == pytest.approx([k / 10 for k in range(1, 11)])
    assert factors[10:] == pytest.approx([1 - k / 90 for k in range(90)])


def test_a_warm_up_ends_at_the_rate_that_a_plateau_has_reduced() -> None:
    config = TrainConfig.model_validate({"schedule": {"name": "plateau", "warmup": 0.1, "factor": 0.5}})
    schedule = Schedule(config, steps=100, steps_per_epoch=100)
    schedule.reduced = 1
    assert [schedule.at(step) for step in (0, 4, 9, 10, 99)] == pytest.approx([0.05, 0.25, 0.5, 0.5, 0.5])


@pytest.mark.parametrize(("name", "last"), [("linear", 0.01), ("cosine", 0.01), ("constant", 1.0)])
def test_the_rate_stays_after_the_last_step(name: str, last: float) -> None:
    assert rates(14, of=10, name=name)[10:] == pytest.approx([last] * 4)
    assert rates(12, of=10, name=name, warmup=1.0) == pytest.approx([k / 10 for k in range(1, 11)] + [1.0, last])


def test_a_training_without_steps_has_a_schedule() -> None:
    assert rates(1, of=0, each=0, name="step", epochs=1) == rates(1, of=0, each=0, name="linear") == [1.0]
    assert rates(2, of=1, each=0, name="step", factor=0.5, epochs=1) == [1.0, 0.5]


def test_equal_facts_mean_equal_rates() -> None:
    config, other = (TrainConfig.model_validate({"schedule": {"name": name}}) for name in ("cosine", "linear"))
    assert Schedule(config, 100, 10).facts == Schedule(config, 100, 10).facts
    for changed in (Schedule(other, 100, 10), Schedule(config, 101, 10), Schedule(config, 100, 11)):
        assert changed.facts != Schedule(config, 100, 10).facts


def test_steps_of_a_staircase_are_epochs() -> None:
    assert rates(8, name="step", factor=0.1, epochs=2, each=2) == pytest.approx([1] * 4 + [0.1] * 4)


@pytest.mark.parametrize(("name", "kind"), [("adam", "Adam"), ("adamw", "AdamW"), ("sgd", "SGD")])
def test_optimisers_have_the_configured_settings(name: str, kind: str) -> None:
    instance = optimizer(name=name, lr=0.3, weight_decay=0.02)
    assert type(instance).__name__ == kind
    assert (instance.param_groups[0]["lr"], instance.param_groups[0]["weight_decay"]) == (0.3, 0.02)


def test_parameters_of_an_optimiser_are_torchs() -> None:
    assert optimizer(name="sgd", parameters={"momentum": 0.9}).param_groups[0]["momentum"] == 0.9
    assert optimizer(name="adam", parameters={"betas": [0.8, 0.9]}).param_groups[0]["betas"] == (0.8, 0.9)
    with pytest.raises(ConfigError, match=r"adam has no 'beta'; did you mean 'betas'\?"):
        optimizer(name="adam", parameters={"beta": 0.9})
    with pytest.raises(ConfigError, match="adam does not accept these settings"):
        optimizer(name="adam", parameters={"betas": [2, 3]})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimiser_by_name_makes_a_step(name: str, samples: Table) -> None:
    assert moved_by_a_step(samples, optimizer={"name": name, "lr": 0.1}) > 0


@pytest.mark.parametrize(
    ("settings", "rate", "warmup"),
    [
        ({"name": "sgd"}, 4.0, True),
        ({"name": "sgd", "lr_batch": 171}, 256 / 171, True),
        ({"name": "sgd", "lr_batch": 256}, 1.0, False),
        ({"name": "sgd", "lr_batch": 1024}, 0.25, False),
        ({"name": "sgd", "lr_rule": "none"}, 1.0, False),
        ({"name": "adam"}, 2.0, False),
        ({"name": "adam", "lr_batch": 1024}, 0.5, False),
        ({"name": "adam", "lr_rule": "linear"}, 4.0, True),
    ],
)
def test_the_rate_follows_the_batch_by_a_stated_rule(settings: dict[str, Any], rate: float, warmup: bool) -> None:
    """A rate that was increased in proportion to the batch starts with a warm-up of 5% of the steps."""
    config = TrainConfig.model_validate({"batch_size": 256, "optimizer": {"lr": 1.0, "lr_batch": 64, **settings}})
    instance = make_optimizer([torch.nn.Parameter(torch.ones(2))], config)
    assert instance.param_groups[0]["lr"] == pytest.approx(rate)
    schedule = Schedule(config, 100, 10)
    assert [schedule.at(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1] if warmup else [1] * 6)


@pytest.mark.parametrize("wrong", [{"name": "lion"}, {"lr": 0}, {"weight_decay": -1}, {"momentum": 0.9}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OptimizerConfig.model_validate(wrong)


def test_clipping_limits_the_norm_of_the_step(samples: Table) -> None:
    plain = {"name": "sgd", "lr": 1.0}
    free = moved_by_a_step(samples, optimizer=plain)
    assert free > 0.2
    assert moved_by_a_step(samples, optimizer=plain, clip=0.1) == pytest.approx(0.1, rel=1e-4)
    assert moved_by_a_step(samples, optimizer=plain, clip=2 * free) == pytest.approx(free, rel=1e-6)


def test_the_rate_scales_the_step() -> None:
    new_engine = engine(optimizer={"name": "sgd", "lr": 0.5})
    new_engine.rate(0.1)
    assert new_engine.optimizers["loss"].param_groups[0]["lr"] == pytest.approx(0.05)
    new_engine.rate(1.0)
    assert new_engine.optimizers["loss"].param_groups[0]["lr"] == 0.5


def test_a_step_returns_the_sum_and_the_weight(samples: Table) -> None:
    ((name, (total, weight)),) = engine().step([to_batch(samples)]).items()
    assert name == "loss"
    assert weight == len(samples)
    line = recipe("line")
    torch.manual_seed(0)
    each = line.loss(line.forward(line.model(), to_batch(samples)), to_batch(samples))
    assert isinstance(each, torch.Tensor)
    assert float(total) == pytest.approx(float(each.detach().sum()), rel=1e-6)


def test_a_loss_of_another_shape_is_refused(samples: Table) -> None:
    batch = to_batch(samples.slice(0, 4))
    with pytest.raises(RecipeError, match=r"loss\(\) returned shape \(4, 1\) for 4 events"):
        as_loss(torch.ones(4, 1), batch)
    assert as_loss(Loss(torch.tensor(2.0), 7.0), batch).weight == 7
    assert as_loss(torch.tensor(2.0), batch).total == 8


def test_a_borrowed_batch_weighs_nothing(samples: Table) -> None:
    batch = to_batch(samples.slice(0, 1))
    batch.counts = False
    for loss in (torch.ones(1), torch.tensor(3.0), Loss(torch.tensor(2.0), 7.0)):
        total, weight = as_loss(loss, batch)
        assert (float(total), weight) == (0, 0)


def test_the_moving_average_of_weights_is_that_of_its_formula() -> None:
    """a <- decay a + (1 - decay) w after every step; the average starts at the first weights."""
    model = torch.nn.Linear(3, 1, bias=False).double()
    average, decay = WeightAverage(model, 0.9), 0.9
    expected, rng = model.weight.detach().numpy().copy(), np.random.default_rng(1)
    for _ in range(6):
        weights = rng.normal(size=(1, 3))
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(weights))
        average.update()
        expected = decay * expected + (1 - decay) * weights
    np.testing.assert_allclose(average.values[0].numpy(), expected, rtol=1e-12)
    with average.swapped():
        np.testing.assert_allclose(model.weight.detach().numpy(), expected, rtol=1e-12)
    np.testing.assert_array_equal(model.weight.detach().numpy(), weights)


@pytest.mark.parametrize("name", ["constant", "cosine", "linear", "step"])
@pytest.mark.parametrize("warmup", [0.0, 0.25])
def test_schedules_are_those_of_their_formulas(name: str, warmup: float) -> None:
    steps, each, floor = 40, 5, 0.1
    factors = rates(steps, each=each, name=name, warmup=warmup, floor=floor, factor=0.5, epochs=2)
    rising = int(warmup * steps)
    for step in range(rising, steps):
        done = (step - rising) / (steps - rising)
        expected = {
            "constant": 1.0,
            "cosine": floor + (1 - floor) * (1 + np.cos(np.pi * done)) / 2,
            "linear": 1 - (1 - floor) * done,
            "step": 0.5 ** (step // (2 * each)),
        }[name]
        assert factors[step] == pytest.approx(expected), step
    assert factors[:rising] == pytest.approx([(step + 1) / max(rising, 1) for step in range(rising)])


def test_the_average_takes_in_every_step(samples: Table) -> None:
    new_engine = engine(ema=0.5, optimizer={"name": "sgd", "lr": 0.1})
    assert new_engine.average is not None
    before = [value.clone() for value in new_engine.average.values]
    new_engine.step([to_batch(samples)])
    for old, now, parameter in zip(before, new_engine.average.values, new_engine.model.parameters(), strict=True):
        torch.testing.assert_close(now, (old + parameter.detach()) / 2)
    assert engine().average is None


def test_parts_of_a_batch_make_the_step_of_the_whole(samples: Table) -> None:
    def weights_after(*parts: Table) -> torch.Tensor:
        new_engine = engine(optimizer={"name": "sgd", "lr": 0.1})
        sums = new_engine.step([to_batch(part) for part in parts])
        assert sums["loss"].weight == len(samples)
        return torch.cat([parameter.detach().flatten() for parameter in new_engine.model.parameters()])

    torch.testing.assert_close(weights_after(samples), weights_after(samples.slice(0, 50), samples.slice(50, 200)))


def test_event_weights_multiply_losses_and_not_their_number(samples: Table) -> None:
    batch = to_batch(samples.slice(0, 3))
    batch.weights = torch.tensor([1.0, 2.0, -1.0])
    loss = as_loss(torch.tensor([3.0, 5.0, 7.0]), batch)
    assert (float(loss.total), loss.weight) == (6.0, 3.0)
    with pytest.raises(RecipeError, match="loss\\(\\) returned a mean"):
        as_loss(torch.tensor(2.0), batch)


def test_a_loss_without_a_gradient_is_refused(samples: Table) -> None:
    """The message names the method that computes it: `step`, or `loss` if the recipe has no own step."""
    own, inherited = type(recipe("line")), type("Inherited", (type(recipe("line")),), {"step": Recipe.step})
    for kind, method in ((own, own.step), (inherited, own.loss)):
        line = kind(own.Config())
        still = Engine(line, line.model().requires_grad_(False), TrainConfig(), Strategy(), torch.device("cpu"))
        place = f"line.py:{inspect.getsourcelines(method)[1]}: the loss has no gradient"
        with pytest.raises(RecipeError, match=re.escape(place)):
            still.step([to_batch(samples)])


def test_half_precision_scales_the_loss_and_not_the_step(samples: Table) -> None:
    """Steps with a gradient that overflows are left out until the scale is small enough."""
    new_engine = engine(precision="fp16", clip=0.1, optimizer={"name": "sgd", "lr": 1.0})
    before = torch.cat([p.detach().flatten().clone() for p in new_engine.model.parameters()])
    moved, steps = 0.0, 0
    while not moved and steps < 20:
        total = new_engine.step([to_batch(samples)])["loss"].total
        moved = float((torch.cat([p.detach().flatten() for p in new_engine.model.parameters()]) - before).norm())
        steps += 1
    assert moved == pytest.approx(0.1, rel=0.01)
    assert float(total) == pytest.approx(float(engine().step([to_batch(samples)])["loss"].total), rel=0.01)
    assert new_engine.scaler is not None and new_engine.scaler.get_scale() == 2.0 ** (17 - steps)


def test_adam_is_one_kernel_for_all_parameters() -> None:
    assert optimizer(name="adam").defaults["fused"] is True


def step_in_timeline(path: Path, samples: Table, *parts: slice, strategy: Strategy | None = None) -> Any:
    """The spans of one step, as its timeline has them."""
    trace, line = TimelineWriter(path), recipe("line")
    trace.begin_step(3)
    traced = Engine(line, line.model(), TrainConfig(), strategy or Strategy(), torch.device("cpu"), trace)
    traced.step([to_batch(samples.slice(part.start, part.stop)) for part in parts])
    trace.close()
    return read_trace(path)


def phases_of_a_step(path: Path, samples: Table, *parts: slice) -> list[str]:
    spans = step_in_timeline(path, samples, *parts)
    ends = spans["start"][:-1] + spans["length"][:-1].astype(np.uint64) * np.uint64(100)
    assert (spans["step"] == 3).all() and (spans["start"][1:] + np.uint64(1000) >= ends).all(), "one after the other"
    return [PHASES[number] for number in spans["phase"]]


def test_a_step_is_in_the_timeline(samples: Table, tmp_path: Path) -> None:
    phases = ["forward", "backward", "optimise"]
    assert phases_of_a_step(tmp_path / "one", samples, slice(0, 50)) == phases
    assert phases_of_a_step(tmp_path / "two", samples, slice(0, 50), slice(50, 90)) == 2 * phases


def test_half_precision_needs_equal_gradients() -> None:
    class Unequal(Strategy):
        same_gradient = False

    line, config = recipe("line"), TrainConfig.model_validate({"precision": "fp16"})
    with pytest.raises(ConfigError, match="fp16 cannot be used with allreduce; use bf16"):
        Engine(line, line.model(), config, Unequal(), torch.device("cpu"))


def test_bfloat16_is_used_in_forward_passes_only(samples: Table) -> None:
    assert engine().autocast() is engine().autocast()
    with engine(precision="bf16").autocast():
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.bfloat16
    assert {p.dtype for p in engine(precision="bf16").model.parameters()} == {torch.float32}


def test_a_hook_adds_gradients_of_a_mean(samples: Table) -> None:
    """As `backward()` of the mean, on top of what is there; a batch that does not count adds nothing."""
    hooked, batch = engine(), to_batch(samples.slice(0, 4))
    weight = next(hooked.model.parameters())
    weight.grad = torch.ones_like(weight)
    summed = hooked.backward((3 * weight).sum(), batch)
    assert torch.equal(weight.grad, torch.full_like(weight, 4.0))
    assert float(summed.total) == pytest.approx(12 * float(weight.detach().sum()), rel=1e-5) and summed.weight == 4
    batch.counts = False
    assert hooked.backward((3 * weight).sum(), batch).weight == 0


def test_optimisers_of_a_recipe_have_their_own_rates(samples: Table) -> None:
    game = recipe("game")
    player = Engine(game, game.model(), TrainConfig(), Strategy(), torch.device("cpu"))
    player.rate(0.5)
    assert {name: each.param_groups[0]["lr"] for name, each in player.optimizers.items()} == {
        "maker": 0.005,
        "critic": 0.0005,
    }
    assert {name: len(each) for name, each in player.parameters.items()} == {"maker": 2, "critic": 4}
    before = [p.detach().clone() for p in player.model.parameters()]
    assert list(player.step([to_batch(samples)])) == ["critic", "maker"]
    assert not any(torch.equal(old, new) for old, new in zip(before, player.model.parameters(), strict=True))
    with pytest.raises(RecipeError, match=r"train\.accumulate cannot be used with a step\(\) that alternates"):
        player.step([to_batch(samples), to_batch(samples)])


def test_the_time_of_communication_is_a_phase_of_its_own(samples: Table, tmp_path: Path) -> None:
    """What the strategy counted during the backward pass, and not before."""

    class Talking(Strategy):
        def backward(self, *arguments: Any, **options: Any) -> Any:
            sums = super().backward(*arguments, **options)
            time.sleep(0.004)
            self.communication_seconds += 2**-9
            return sums

    strategy = Talking()
    strategy.communication_seconds = 7.0
    spans = step_in_timeline(tmp_path / "trace", samples, slice(0, 50), strategy=strategy)
    assert [PHASES[number] for number in spans["phase"]] == ["forward", "backward", "communicate", "optimise"]
    assert spans["length"][2] == 19_531, "2 ms, in hundreds of nanoseconds"


def test_a_recipe_may_take_its_steps_itself(samples: Table) -> None:
    class Own(type(recipe("line"))):  # type: ignore[misc]
        def step(self, model: torch.nn.Module, batch: Any) -> TakenSteps:
            return TakenSteps(mine=Loss(torch.tensor(3.0), 1.0))

    own = Own(Own.Config())
    taken = Engine(own, own.model(), TrainConfig(), Strategy(), torch.device("cpu"))
    before = [p.detach().clone() for p in taken.model.parameters()]
    sums = taken.step([to_batch(samples)])
    assert list(sums) == ["mine"] and float(sums["mine"].total) == 3.0
    assert all(torch.equal(old, new) for old, new in zip(before, taken.model.parameters(), strict=True))
