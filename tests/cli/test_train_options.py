"""`clew train`: short options, names of runs, training longer, and starting from weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clew
from clew import Dataset, Run
from clew.errors import RunError
from clew.training.api import resume
from tests.cli import clew as run_clew
from tests.training import RECIPES, recipe, weights
from tests.training.conftest import flat_dataset

LINE = str(RECIPES / "line.py")


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return flat_dataset(tmp_path_factory.mktemp("flat"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*words: str, code: int | None = 0) -> str:
    """The output of a command, which ends with this exit code."""
    result = run_clew(*words)
    assert code is None or result.code == code, result.err
    return result.out + result.err


def train(data: Dataset, *words: str) -> str:
    return invoke("train", LINE, "--dataset", str(data.path), *words)


def settings(name: str) -> dict[str, Any]:
    return dict(Run.open(name).config().data["train"])


def test_common_settings_are_options(flat: Dataset, folder: Path) -> None:
    text = train(flat, "--epochs", "1", "--lr", "0.02", "--batch-size", "50", "--device", "cpu")
    assert "epoch   1/1" in text
    used = settings("line-001")
    assert used["optimizer"]["lr"] == 0.02 and used["batch_size"] == 50 and used["device"] == "cpu"
    train(flat, "--epochs", "1", "--batch-size", "auto")
    assert isinstance(settings("line-002")["batch_size"], int)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batch-size", "many"), "train.batch_size"),
        (("--device", "cuda:77"), "train.device cuda:77: no such device here; torch finds cpu"),
        (("--from", "nothing"), "nothing: no such run"),
        (("--from", LINE), "not a file of weights; use a run or a file .safetensors"),
    ],
)
def test_wrong_values_end_with_exit_code_2(words: tuple[str, ...], message: str, flat: Dataset, folder: Path) -> None:
    assert message in invoke("train", LINE, "--dataset", str(flat.path), *words, code=2)
    assert not Path("runs").exists()


def test_a_name_that_runs_list_prints_is_accepted_wherever_a_folder_is(flat: Dataset, folder: Path) -> None:
    train(flat, "--epochs", "1")
    name = invoke("runs", "list").splitlines()[1].split()[0]
    assert name == "line-001"
    assert "finished" in invoke("runs", "show", name)
    assert "val" in invoke("evaluate", name)
    assert "report.html" in invoke("runs", "report", name)
    invoke("predict", name, "--output", "scores.h5", "--raw")
    invoke("export", name, "--to", "torch")
    invoke("train", name, "--output", "runs/again")
    assert "line-001" in invoke("compare", name, "again")
    invoke("trace", name)
    assert "line-001" in invoke("logs", name, code=None) and "line-001" in invoke("follow", name, code=None)
    assert clew.evaluate(name).events and settings(name)["epochs"] == 1


def test_a_name_of_a_study_is_accepted(flat: Dataset, folder: Path) -> None:
    space = "tune.space={train.optimizer.lr: {log: [1e-3, 1e-1]}}"
    options = ("--set", space, "--set", "train.epochs=1", "--set", "tune.objective=val/loss")
    invoke("tune", "run", LINE, "--dataset", str(flat.path), "--trials", "1", *options)
    assert "1 complete" in invoke("tune", "show", "line-001")
    assert '"train.optimizer.lr"' in invoke("tune", "best", "line-001")
    assert "2 complete" in invoke("tune", "run", "--resume", "line-001", "--trials", "2")
    assert "line-009: no study" in invoke("tune", "run", "--resume", "line-009", code=2)


def test_a_finished_run_is_trained_longer(flat: Dataset, folder: Path) -> None:
    train(flat, "--epochs", "2", "--output", "runs/short")
    train(flat, "--epochs", "4", "--output", "runs/long")
    assert "finished after 2 epochs; train it longer with --epochs N" in invoke("train", "--resume", "short", code=2)
    text = invoke("train", "--resume", "short", "--epochs", "4")
    assert "epoch   3/4" in text and "epoch   4/4" in text and "epoch   2/4" not in text
    assert "4/4" in invoke("runs", "list") and settings("short")["epochs"] == 4
    for name, values in weights(Run.open("long")).items():
        assert torch.equal(values, weights(Run.open("short"))[name])  # as if it had never ended


def test_a_run_that_stopped_early_is_trained_longer(flat: Dataset, folder: Path) -> None:
    stopping = "train.early_stopping={patience: 1, min_delta: 100.0}"
    train(flat, "--epochs", "9", "--set", stopping, "--output", "runs/early")
    before = Run.open("early").last("validation")
    assert before is not None and before["epoch"] == 1
    invoke("train", "--resume", "early", "--epochs", "10")
    after = Run.open("early").last("validation")
    assert after is not None and after["epoch"] == 2


def test_a_run_that_a_limit_ended_says_what_to_do(flat: Dataset, folder: Path) -> None:
    train(flat, "--epochs", "2", "--set", "train.steps=3", "--output", "runs/steps")
    text = invoke("train", "--resume", "steps", "--epochs", "9", code=2)
    assert "with train.steps=3 it cannot be trained longer; start a new run from its weights: --from" in text


def test_other_settings_of_a_resumed_run_stay(flat: Dataset, folder: Path) -> None:
    train(flat, "--epochs", "1")
    text = invoke("train", "--resume", "line-001", "--epochs", "2", "--lr", "0.1", code=2)
    assert "--epochs, --workers, --device and --time-limit can be added" in text and "--lr" in text


def test_asynchronous_trainings_and_two_workers_are_trained_longer(flat: Dataset, folder: Path) -> None:
    options: dict[str, Any] = {"asynchronous": {"masters": 0}, "workers": 1, "strategy": "downpour"}
    run = clew.train(recipe("line"), flat, epochs=1, output="runs/async", **options)
    assert resume(run, epochs=2).last("validation")["epoch"] == 1  # type: ignore[index]
    run = clew.train(recipe("line"), flat, epochs=1, output="runs/two", workers=2)
    assert resume(run, epochs=2).last("validation")["epoch"] == 1  # type: ignore[index]
    with pytest.raises(RunError, match="finished after 2 epochs"):
        resume(run, epochs=2)


def first_loss(name: str) -> float:
    """The loss of the first batches."""
    return float(next(Run.open(name).records(kind="step"))["loss"]["loss"])


def test_a_run_starts_from_the_weights_of_another(flat: Dataset, folder: Path) -> None:
    train(flat, "--epochs", "9", "--lr", "0.05", "--output", "runs/first")
    train(flat, "--epochs", "1", "--set", "train.log_every=1", "--output", "runs/new")
    train(flat, "--epochs", "1", "--set", "train.log_every=1", "--from", "first", "--output", "runs/tuned")
    assert first_loss("tuned") < 0.1 < first_loss("new")
    assert settings("tuned")["start_from"] == str(folder / "runs/first/checkpoints/best.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"workers": 2}, {"strategy": "downpour", "workers": 1}])
def test_every_strategy_starts_from_weights(options: dict[str, Any], flat: Dataset, folder: Path) -> None:
    trained = clew.train(recipe("line"), flat, epochs=9, lr=0.05, output="runs/first")
    run = clew.train(recipe("line"), flat, epochs=1, lr=1e-9, output="runs/next", start_from=trained, **options)
    for name, values in weights(trained, "best").items():
        torch.testing.assert_close(weights(run)[name], values, atol=1e-4, rtol=1e-4)


def test_weights_of_torch_save_are_a_start(folder: Path) -> None:
    x = np.ones((60, 2), dtype=np.float32)
    model = nn.Linear(2, 1)
    torch.save({"weight": torch.full((1, 2), 3.0), "bias": torch.zeros(1)}, "start.pt")
    run = clew.train(model, (x, x.sum(axis=1)), epochs=1, lr=1e-9, start_from="start.pt", output="runs/a")
    torch.testing.assert_close(weights(run)["weight"], torch.full((1, 2), 3.0))
    with pytest.raises(RunError, match=r"weights of another model: 'bias' is \(1,\) in the file, \(3,\) in the model"):
        clew.train(nn.Linear(2, 3), (x, np.ones((60, 3))), epochs=1, start_from="start.pt", output="runs/b")


@pytest.mark.parametrize("words", ["", "train", "prepare", "runs list", "tune run", "serve"])
def test_help_shows_no_type_for_flags(words: str) -> None:
    text = invoke(*words.split(), "--help")
    assert "--help" in text and "bool" not in text
