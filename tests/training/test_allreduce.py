"""Several processes that sum their gradients train like one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

import clew
from clew import Dataset, Run
from clew.errors import RecipeError
from clew.recipe import find
from clew.recipes.tracking import TrackingConfig
from clew.training.config import TrainConfig
from clew.training.strategies import Strategy
from clew.training.training_data import make_loader
from tests.training import leaving, losses, recipe, validations, weights

pytestmark = pytest.mark.timeout(120)

Train = Callable[[int], Run]


@pytest.fixture(scope="module")
def trained(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Tracking, 2 epochs, on so many processes; the last batch has one sample, so some rank's share is empty."""

    @cache
    def train(workers: int) -> Run:
        tracking = find("tracking")(TrackingConfig.model_validate({"model": {"hidden": 8}}))
        size = leaving(dataset.splits["train"], 1)
        output = tmp_path_factory.mktemp("run") / str(workers)
        return clew.train(
            tracking, dataset, epochs=2, batch_size=size, workers=workers, threads=1, log_every=1, output=output
        )

    return train


@pytest.mark.parametrize("workers", [2, 3])
def test_the_weights_are_those_of_one_process(trained: Train, workers: int) -> None:
    one, several = weights(trained(1)), weights(trained(workers))
    assert one.keys() == several.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(several[name], tensor, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("workers", [2, 3])
def test_every_step_has_the_loss_of_one_process(trained: Train, workers: int) -> None:
    one, several = losses(trained(1)), losses(trained(workers))
    assert len(one) == len(several) > 3
    np.testing.assert_allclose([s["loss"] for s in several], [s["loss"] for s in one], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("workers", [2, 3])
def test_validation_does_not_depend_on_the_number_of_processes(trained: Train, workers: int) -> None:
    for one, several in zip(validations(trained(1)), validations(trained(workers)), strict=True):
        for name in ("efficiency", "purity", "ghost_rate", "event_ratio"):
            assert several[name] == pytest.approx(one[name], abs=1e-9)
        assert several["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_ranks_share_a_batch_by_items(dataset: Dataset) -> None:
    """The shares of a batch have the same cost within one sample, and unequal numbers of samples."""
    tracking, lengths = find("tracking")(), {name: dataset.lengths("train", name) for name in ("node", "edge")}
    costs = tracking.sample_costs(lengths)
    config = TrainConfig.model_validate({"dataset": str(dataset.path), "batch_size": 64})
    loaders = [make_loader(tracking, config, dataset, Strategy(rank=r, ranks=3), torch.device("cpu")) for r in range(3)]
    for portions in zip(*(loader.epoch(0) for loader in loaders), strict=True):
        loads = [float(costs[portion.numbers].sum()) for portion in portions]
        largest = max(float(costs[number]) for portion in portions for number in portion.numbers)
        assert sum(len(portion.numbers) for portion in portions) == portions[0].size
        assert max(loads) - min(loads) <= largest


def test_costs_that_are_not_one_per_sample_are_refused(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking, config = find("tracking")(), TrainConfig(dataset=str(dataset.path))
    for wrong in (np.ones(3), np.zeros(dataset.splits["train"])):
        monkeypatch.setattr(type(tracking), "sample_costs", lambda self, lengths, wrong=wrong: wrong)
        with pytest.raises(
            RecipeError, match=r"sample_costs\(\) returned shape .*; sample_costs\(lengths\) must return one"
        ):
            make_loader(tracking, config, dataset, Strategy(rank=0, ranks=2), torch.device("cpu"))


def test_every_rank_leaves_its_records(trained: Train) -> None:
    run = trained(3)
    assert run.streams() == ["rank-0", "rank-1", "rank-2"]
    for stream in run.streams():
        assert losses(run, stream) == losses(run)
        assert validations(run, stream) == validations(run)
        end = run.last("end", stream)
        assert end is not None and end["status"] == "finished"
    assert [run.last("checkpoint", stream) is None for stream in run.streams()] == [False, True, True]
    assert not run.meeting_file.exists()


def test_counts_of_flat_samples_are_exact_on_any_number_of_processes(
    flat: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, tiny = tmp_path_factory.mktemp("runs"), {"lr": 1e-12}
    runs = [
        clew.train(recipe("line"), flat, epochs=1, workers=n, threads=1, optimizer=tiny, output=folder / str(n))
        for n in (1, 2, 3)
    ]
    counts = [validations(run)[-1]["near"] for run in runs]
    assert 0 < counts[0] < 1
    assert counts == [counts[0]] * 3


def test_more_processes_than_samples_in_every_batch(flat: Dataset, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("runs")
    one, three = (
        clew.train(recipe("line"), flat, epochs=1, batch_size=2, workers=n, threads=1, output=folder / str(n))
        for n in (1, 3)
    )
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(three)[name], tensor, rtol=1e-5, atol=1e-5)


def test_all_ranks_begin_with_the_weights_of_the_first(flat: Dataset, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, unequal = tmp_path_factory.mktemp("runs"), recipe("line", unequal=True)
    one, two = (clew.train(unequal, flat, epochs=1, workers=n, threads=1, output=folder / str(n)) for n in (1, 2))
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(two)[name], tensor, rtol=1e-5, atol=1e-5)


def test_what_is_validated_is_what_is_saved_also_where_ranks_gather_statistics(
    flat: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> None:
    output = tmp_path_factory.mktemp("runs") / "run"
    run = clew.train(recipe("line", normed=True), flat, epochs=2, workers=2, threads=1, output=output)
    again = clew.evaluate(run, split="val", weights="last")
    assert again.metrics["loss"].value == pytest.approx(validations(run)[-1]["loss"], rel=1e-6)


def test_parameters_no_loss_depends_on_decay_alike(flat: Dataset, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, decay = tmp_path_factory.mktemp("runs"), {"name": "adamw", "lr": 0.01, "weight_decay": 1.0}
    one, two = (
        clew.train(
            recipe("line", unused=True), flat, epochs=1, workers=n, threads=1, optimizer=decay, output=folder / str(n)
        )
        for n in (1, 2)
    )
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(two)[name], tensor, rtol=1e-5, atol=1e-5)


def test_several_workers_need_a_strategy_that_has_them(flat: Dataset, tmp_path_factory: pytest.TempPathFactory) -> None:
    output = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(clew.errors.ConfigError, match=r"train\.strategy single cannot use 2 workers"):
        clew.train(recipe("line"), flat, epochs=1, workers=2, strategy="single", output=output)
    assert Run.open(output).state == "failed"
