"""What a recipe may return from `loss` and `step`, through whole trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clew
from clew import Dataset, Run
from clew.data.dataset.batch import to_batch
from clew.errors import RecipeError
from tests.training import leaving, losses, recipe, weights

pytestmark = pytest.mark.filterwarnings("ignore::clew.runs.saved_code.CodeWarning")  # another recipe prepared `flat`
PLAIN: dict[str, Any] = {"epochs": 2, "batch_size": 16, "threads": 1, "optimizer": {"lr": 0.02}}


def train(name: str, data: Dataset, output: Path, settings: dict[str, Any] | None = None, **more: Any) -> Run:
    return clew.train(recipe(name, **(settings or {})), data, output=output, **{**PLAIN, **more})


@pytest.mark.parametrize("form", ["mean", "loss"])
def test_a_mean_and_a_sum_with_its_weight_are_the_same_as_one_loss_per_event(
    flat: Dataset, tmp_path: Path, form: str
) -> None:
    each, other = train("line", flat, tmp_path / "each"), train("line", flat, tmp_path / form, {"form": form})
    for name, tensor in weights(each).items():
        torch.testing.assert_close(weights(other)[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [1, 2])
def test_event_weights_flow_into_the_gradient(weighted: Dataset, tmp_path: Path, workers: int) -> None:
    samples, line = weighted.read("train"), recipe("line")
    step: dict[str, Any] = {"epochs": 1, "batch_size": len(samples), "optimizer": {"name": "sgd", "lr": 0.1}}
    run = train("line", weighted, tmp_path / "run", workers=workers, **step)
    torch.manual_seed(0)
    model, batch = line.model(), to_batch(samples)
    each = (line.forward(model, batch) - batch["y"]) ** 2
    total = (each * torch.from_numpy(samples.weights)).sum() / len(samples)
    total.backward()
    assert losses(run)[-1]["loss"] == pytest.approx(float(total.detach()), rel=1e-5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(
            weights(run)[name], (parameter - 0.1 * parameter.grad).detach(), rtol=1e-5, atol=1e-6
        )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [1, 2])
def test_the_mean_over_weights_that_add_up_below_zero_is_the_same(
    weighted: Dataset, tmp_path: Path, workers: int
) -> None:
    """Turning the sign of every weight changes neither numerator over denominator nor its gradient."""
    plain, turned = (
        weights(train("line", weighted, tmp_path / form, {"form": form}, workers=workers))
        for form in ("normalised", "turned")
    )
    for name, tensor in plain.items():
        torch.testing.assert_close(turned[name], tensor, rtol=1e-5, atol=1e-6)


def test_a_mean_of_weighted_events_is_refused(weighted: Dataset, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="events have weights, but loss"):
        train("line", weighted, tmp_path / "run", {"form": "mean"})


@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_game_of_two_optimisers_records_both_losses(flat: Dataset, tmp_path: Path, workers: int) -> None:
    run = game(flat, tmp_path / "run", workers)
    assert {name for step in losses(run) for name in step} == {"maker", "critic"}
    assert np.isfinite([list(step.values()) for step in losses(run)]).all()
    one = game(flat, tmp_path / "one", 1)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(run)[name], tensor, rtol=1e-5, atol=1e-5)


def game(data: Dataset, output: Path, workers: int) -> Run:
    size = leaving(data.splits["train"], 1)
    return train(
        "game",
        data,
        output,
        workers=workers,
        batch_size=size,
        log_every=1,
        best={"metric": "spread", "direction": "minimize"},
    )


@pytest.mark.parametrize("alternate", [False, True])
def test_two_losses_on_disjoint_parameters_train_as_if_alone(flat: Dataset, tmp_path: Path, alternate: bool) -> None:
    both = train("pair", flat, tmp_path / "both", {"alternate": alternate})
    for name in ("a", "b"):
        alone = train("pair", flat, tmp_path / name, {"losses": [name], "optimizers": [name]})
        assert [step[name] for step in losses(both)] == pytest.approx([step[name] for step in losses(alone)], rel=1e-6)
        for key in (f"{name}.weight", f"{name}.bias"):
            torch.testing.assert_close(weights(both)[key], weights(alone)[key], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("alternate", [False, True])
def test_a_loss_without_its_optimiser_is_refused(flat: Dataset, tmp_path: Path, alternate: bool) -> None:
    with pytest.raises(RecipeError, match="step\\(\\) returned a loss 'b', but there is no optimiser of that name"):
        train("pair", flat, tmp_path / "run", {"optimizers": ["a"], "alternate": alternate})


@pytest.mark.parametrize("alternate", [False, True])
def test_an_optimiser_without_its_loss_is_refused(flat: Dataset, tmp_path: Path, alternate: bool) -> None:
    with pytest.raises(RecipeError, match="step\\(\\) returned no loss for the optimiser 'b'"):
        train("pair", flat, tmp_path / "run", {"losses": ["a"], "alternate": alternate})


@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [1, 2])
def test_frozen_parameters_stay_and_the_others_learn(flat: Dataset, tmp_path: Path, workers: int) -> None:
    run = train("line", flat, tmp_path / "run", {"frozen": True}, workers=workers)
    torch.manual_seed(0)
    before = recipe("line").model().state_dict()
    moved = {name: not torch.equal(tensor, before[name]) for name, tensor in weights(run).items()}
    assert moved == {"0.weight": False, "0.bias": False, "1.weight": True, "1.bias": True}


def test_batches_without_a_loss_term_change_no_weight(flat: Dataset, tmp_path: Path) -> None:
    run = train("line", flat, tmp_path / "run", {"form": "nothing"})
    torch.manual_seed(0)
    before = recipe("line").model().state_dict()
    assert run.state == "finished"
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(run).items())
