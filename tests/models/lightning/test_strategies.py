"""LightningModules on several processes, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import clew
from clew import Run
from clew.errors import ConfigError, StoppedError
from clew.training.api import resume
from tests.training import losses, validations, weights

SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 32, "threads": 1, "seed": 5, "log_every": 1}
MODULES = {"Classifier": {"schedule": "step", "dropout": 0.0}, "Adversarial": {}}


def train(name: str, output: Path, **settings: Any) -> Run:
    arguments = settings.pop("arguments", MODULES[name])
    return clew.train(f"modules.py:{name}", "events.h5", arguments=arguments, output=output, **{**SETTINGS, **settings})


@pytest.fixture(scope="module")
def single(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Each module trained by one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return {name: train(name, tmp_path_factory.mktemp("single") / name) for name in MODULES}


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["allreduce", "sharded"])
@pytest.mark.parametrize("name", MODULES)
def test_two_ranks_give_the_result_of_one(name: str, strategy: str, single: dict[str, Run], tmp_path: Path) -> None:
    run = train(name, tmp_path / "run", workers=2, strategy=strategy)
    for value, expected in zip(losses(run), losses(single[name]), strict=True):
        assert value["loss"] == pytest.approx(expected["loss"], abs=2e-5)
    for value, expected in zip(validations(run), validations(single[name]), strict=True):
        assert value.keys() == expected.keys()
        assert value == pytest.approx(expected, abs=2e-5)
    for key, tensor in weights(single[name]).items():
        torch.testing.assert_close(weights(run)[key], tensor, atol=5e-5, rtol=0)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("strategy", "name"), [("downpour", "Adversarial"), ("easgd", "Classifier")])
def test_asynchronous_workers_train_a_module(strategy: str, name: str, tmp_path: Path) -> None:
    arguments = {"Adversarial": {"schedule": False}, "Classifier": {"schedule": "none"}}[name]
    run = train(name, tmp_path / "run", workers=2, strategy=strategy, arguments=arguments, epochs=4)
    assert run.state == "finished"
    curve = [each["loss"] for each in validations(run)]
    assert curve[-1] < curve[0]


def test_asynchronous_workers_refuse_a_scheduler(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Classifier has learning-rate schedulers, which need common steps"):
        train("Classifier", tmp_path / "run", workers=2, strategy="downpour")


def test_a_pipeline_refuses_a_module(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pipeline divides an nn\\.Sequential, or another model at"):
        train("Classifier", tmp_path / "run", workers=2, strategy="pipeline")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", MODULES)
def test_a_stopped_run_resumes_with_the_same_bits(name: str, workers: int, tmp_path: Path) -> None:
    arguments = {**MODULES[name], **({"dropout": 0.3} if name == "Classifier" else {})}
    whole = train(name, tmp_path / "whole", arguments=arguments, workers=workers)
    with pytest.raises(StoppedError):
        train(name, tmp_path / "half", arguments=arguments, workers=workers, time_limit_minutes=0.0001)
    half = Run.open(tmp_path / "half")
    assert half.state == "stopped" and 0 < len(losses(half)) < len(losses(whole))
    resumed = resume(half, time_limit_minutes=10)
    assert {n: t.tolist() for n, t in weights(resumed).items()} == {n: t.tolist() for n, t in weights(whole).items()}
    assert losses(resumed) == losses(whole)
    assert validations(resumed) == validations(whole)
