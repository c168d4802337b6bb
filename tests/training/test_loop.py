"""The results of a run: reproducible weights, the best ones, and records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import clew
from clew import Dataset, Run
from clew.errors import ConfigError, DataError, RunError, UserError
from tests.training import losses, recipe, validations, weights
from tests.training.conftest import flat_dataset

PLAIN: dict[str, Any] = {"epochs": 2, "batch_size": 16, "threads": 1, "optimizer": {"lr": 0.02}}


def train(data: Dataset, output: Path, **settings: Any) -> Run:
    return clew.train(recipe("line"), data, output=output, **{**PLAIN, **settings})


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(flat: Dataset, tmp_path: Path) -> None:
    first, again, other = (
        weights(train(flat, tmp_path / name, seed=seed)) for name, seed in (("a", 4), ("b", 4), ("c", 5))
    )
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not any(torch.equal(tensor, other[name]) for name, tensor in first.items())


@pytest.mark.slow
def test_tracking_gives_the_same_bits_for_the_same_seed(dataset: Dataset, tmp_path: Path) -> None:
    first, again = (weights(clew.train("tracking", dataset, epochs=1, threads=1, output=tmp_path / n)) for n in "ab")
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())


@pytest.mark.parametrize(("metric", "direction"), [("loss", "minimize"), ("near", "maximize")])
def test_the_best_weights_are_those_of_the_best_validation(
    flat: Dataset, tmp_path: Path, metric: str, direction: str
) -> None:
    wild, best = {"name": "sgd", "lr": 0.13}, {"metric": metric, "direction": direction}
    run = train(flat, tmp_path / "run", epochs=8, batch_size=5, optimizer=wild, best=best, seed=3)
    values = [metrics[metric] for metrics in validations(run)]
    best_epoch = values.index(min(values) if direction == "minimize" else max(values))
    for name, epoch in (("best", best_epoch), ("last", 7)):
        with safe_open(run.checkpoint(name), "pt") as file:
            assert json.loads(file.metadata()["clew"])["epoch"] == epoch
        again = clew.evaluate(run, split="val", weights=name)
        assert again.metrics[metric].value == pytest.approx(values[epoch], rel=1e-6)


def test_a_metric_undefined_at_first_does_not_hide_later_ones(flat: Dataset, tmp_path: Path) -> None:
    rule = {"metric": "high", "direction": "maximize"}
    run = train(flat, tmp_path / "run", epochs=12, optimizer={"lr": 0.005}, best=rule)
    values = [metrics["high"] for metrics in validations(run)]
    assert values[0] is None
    evaluated = clew.evaluate(run, split="val").metrics["high"].value
    assert evaluated == max(value for value in values if value is not None) > 0


def test_a_best_metric_that_is_not_there_is_named(flat: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.best\.metric 'auc' is not among loss, near, high"):
        train(flat, tmp_path / "run", best={"metric": "auc"})


def test_records_have_the_plan_every_step_and_the_end(flat: Dataset, tmp_path: Path) -> None:
    run, samples = train(flat, tmp_path / "run", log_every=2), flat.splits["train"]
    plan = run.last("plan")
    assert plan is not None
    steps = -(-samples // 16)
    assert (plan["epochs"], plan["steps"], plan["samples"], plan["parameters"]) == (2, 2 * steps, samples, 21)
    records = list(run.records(kind="step"))
    expected = [n for n in range(1, 2 * steps + 1) if n % 2 == 0 or n % steps == 0]
    assert [record["step"] for record in records] == expected
    assert records[-1]["samples"] == 2 * samples
    assert [(v["epoch"], v["step"]) for v in run.records(kind="validation")] == [(0, steps), (1, 2 * steps)]
    assert run.state == "finished"


def test_training_learns_the_line(flat: Dataset, tmp_path: Path) -> None:
    run = train(flat, tmp_path / "run", epochs=40, schedule={"name": "cosine"})
    assert losses(run)[-1]["loss"] < 0.05 < losses(run)[0]["loss"]
    assert validations(run)[-1]["near"] > 0.9


def test_a_taken_folder_is_not_touched(flat: Dataset, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(RunError, match="exists already"):
        train(flat, tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_a_dataset_without_validation_is_refused_before_a_run_is_made(flat: Dataset, tmp_path: Path) -> None:
    source = str(flat.path.parent / "events.npz")
    data = clew.prepare(recipe("line"), input=[source], output=str(tmp_path / "all"), split={"train": 1.0}, workers=1)
    with pytest.raises(DataError, match="the split 'val' is empty"):
        train(data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"epoch": 3}, {"optimizer": {"lr": "fast"}}, {"loading": None}])
def test_settings_that_are_wrong_are_a_users_error(flat: Dataset, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        train(flat, tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_the_settings_are_saved_and_give_the_same_run_again(tmp_path: Path) -> None:
    data = flat_dataset(tmp_path)
    run = train(data, tmp_path / "run", clip=0.5)
    saved = clew.settings.load_settings(str(run.path))
    again = clew.train(saved.recipe, config=saved.train, output=tmp_path / "again")
    assert all(torch.equal(tensor, weights(run)[name]) for name, tensor in weights(again).items())
