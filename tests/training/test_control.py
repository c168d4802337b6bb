"""Control of a training: its end, learning rate, saved weights, and bad batches."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clew
from clew import Dataset, Run, Table
from clew.errors import ConfigError, DataError, StoppedError
from clew.training import checkpoint
from clew.training.api import resume
from clew.training.config import TrainConfig
from clew.training.early_stopping import ValidationTracker
from clew.training.schedule import Schedule
from tests.training import RECIPES, losses, recipe, validations, weights

STILL = {"lr": 1e-12}
"""A rate at which nothing is learned."""


def train(data: Dataset, output: Path, stop_after: int = 0, **settings: Any) -> Run:
    line = recipe("line", stop_after=stop_after)
    return clew.train(line, data, output=output, **{"threads": 1, "log_every": 1, "batch_size": 32, **settings})


def steps_per_epoch(data: Dataset) -> int:
    return -(-data.splits["train"] // 32)


def ending(run: Run) -> str:
    end = run.last("end")
    assert end is not None and end["status"] == "finished"
    return str(end["message"])


@pytest.mark.parametrize("steps", [1, 8, 11])
def test_a_number_of_steps_ends_a_training(flat: Dataset, tmp_path: Path, steps: int) -> None:
    run = train(flat, tmp_path / "run", epochs=50, steps=steps)
    assert len(losses(run)) == steps
    assert ending(run) == f"{steps} steps are done"
    assert len(validations(run)) == -(-steps // steps_per_epoch(flat))


@pytest.mark.parametrize("workers", [1, 2])
def test_minutes_end_a_training(flat: Dataset, tmp_path: Path, workers: int) -> None:
    run = train(flat, tmp_path / "run", epochs=100_000, minutes=0.01, workers=workers)
    assert ending(run) == "0.01 minutes are over"
    assert validations(run) and run.checkpoint("best").exists()


def test_patience_ends_a_training_that_does_not_get_better(flat: Dataset, tmp_path: Path) -> None:
    run = train(flat, tmp_path / "run", epochs=50, optimizer=STILL, early_stopping={"patience": 3, "min_delta": 1e-6})
    assert len(validations(run)) == 4
    assert ending(run) == "loss has not improved in 3 validations"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_target_ends_a_training(flat: Dataset, tmp_path: Path, workers: int) -> None:
    run = train(
        flat,
        tmp_path / "run",
        epochs=200,
        workers=workers,
        optimizer={"lr": 0.02},
        target={"metric": "near", "value": 0.9},
    )
    values = [each["near"] for each in validations(run)]
    assert values[-1] >= 0.9 > max(values[:-1])
    assert ending(run).endswith(", the target was 0.9")


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"best": {"metric": "nere"}}, r"train\.best\.metric"),
        ({"target": {"metric": "nere", "value": 1}}, r"train\.target\.metric"),
        ({"early_stopping": {"metric": "nere"}}, r"train\.early_stopping\.metric"),
    ],
)
def test_a_metric_that_is_not_there_is_reported_before_the_first_step(
    settings: dict[str, Any], setting: str, flat: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{setting} 'nere' is not among loss, near, high"):
        train(flat, tmp_path / "run", **settings)
    assert not losses(Run.open(tmp_path / "run"))


def test_early_stopping_counts_on_through_a_resume(flat: Dataset, tmp_path: Path) -> None:
    settings = {"epochs": 50, "optimizer": STILL, "early_stopping": {"patience": 6, "min_delta": 1e-6}}
    with pytest.raises(StoppedError):
        train(flat, tmp_path / "run", stop_after=4 * steps_per_epoch(flat) + 2, **settings)
    assert len(validations(Run.open(tmp_path / "run"))) == 4
    assert len(validations(resume(tmp_path / "run"))) == 7


@pytest.mark.parametrize("settings", [{}, {"strategy": "downpour", "asynchronous": {"masters": 0}}])
def test_minutes_count_on_through_a_resume(settings: dict[str, Any], flat: Dataset, tmp_path: Path) -> None:
    """As if the run had trained for half an hour before it was stopped."""
    with pytest.raises(StoppedError):
        train(flat, tmp_path / "run", stop_after=12, epochs=1000, minutes=30.0, **settings)
    run = Run.open(tmp_path / "run")
    state, path, _ = checkpoint.load_state(run)
    assert 0 < state["spent"] < 1800
    checkpoint.save_state(run, int(path.stem.rpartition("-")[2]), {**state, "spent": 1801.0}, keep=9)
    assert ending(resume(run)) == "30 minutes are over"
    assert checkpoint.load_state(run)[0]["spent"] > 1801


def test_a_plateau_cuts_the_rate() -> None:
    config = TrainConfig.model_validate({"schedule": {"name": "plateau", "epochs": 2, "factor": 0.1}})
    schedule = Schedule(config, 100, 10)
    verdict = ValidationTracker(config, schedule)
    rates = []
    for loss in (1.0, 0.9, 0.95, 0.95, 0.95, 0.95, 0.1):
        verdict.update({"loss": loss})
        rates.append(schedule.at(0))
    assert rates == pytest.approx([1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_a_batch_that_is_not_finite_is_saved_and_its_column_named(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32)
    Table({"x": x, "y": x[:, 0]}).save(tmp_path / "events.h5")
    source = {"train": [str(tmp_path / "events.h5")]}
    x[60, 1] = 1e30  # finite, but its square is not
    Table({"x": x[50:], "y": x[50:, 0]}).save(tmp_path / "val.h5")
    data = clew.prepare(
        recipe("line"), input={"train": str(tmp_path / "val.h5"), "val": source["train"]}, output=str(tmp_path / "set")
    )
    with pytest.raises(clew.errors.ClewError, match=r"loss is inf at step \d+; .*its samples are in ") as caught:
        train(data, tmp_path / "run", epochs=1, log_every=4, batch_size=10, optimizer={"lr": 1e-3})
    saved = Table.load(str(caught.value).rpartition(" in ")[2])
    assert len(saved) == 10
    assert saved.fixed("x").max() == pytest.approx(1e30)


def test_the_average_of_weights_is_validated_and_saved(flat: Dataset, tmp_path: Path) -> None:
    plain = train(flat, tmp_path / "plain", epochs=2, optimizer={"lr": 0.05})
    every_step: dict[str, Any] = {"checkpoint_minutes": 1e-9, "keep_checkpoints": 100}
    run = train(flat, tmp_path / "run", epochs=2, optimizer={"lr": 0.05}, ema=0.95, **every_step)
    assert losses(run) == losses(plain)
    states = [torch.load(path, weights_only=True) for path in run.states()]
    assert len(states) == 2 * steps_per_epoch(flat)
    for before, after in itertools.pairwise(states):
        for name, average in after["average"].items():
            expected = 0.95 * before["average"][name] + 0.05 * after["model"][name]
            torch.testing.assert_close(average, expected)
    for name, tensor in weights(run).items():
        torch.testing.assert_close(tensor, states[-1]["average"][name])
        assert not torch.equal(tensor, weights(plain)[name])
    again = clew.evaluate(run, split="val", weights="last")
    assert again.metrics["loss"].value == pytest.approx(validations(run)[-1]["loss"], rel=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"precision": "fp16"}, {"compile": True}])
def test_precision_and_compilation_change_little(settings: dict[str, Any], flat: Dataset, tmp_path: Path) -> None:
    plain = train(flat, tmp_path / "plain", epochs=1)
    run = train(flat, tmp_path / "run", epochs=1, **settings)
    assert run.state == "finished"
    for loss, plain_loss in zip(losses(run), losses(plain), strict=True):
        assert loss["loss"] == pytest.approx(plain_loss["loss"], rel=0.05)
    exact = losses(run) == losses(plain)
    assert exact == (settings == {"compile": True} and exact)


def test_all_state_is_resumed_bit_for_bit(flat: Dataset, tmp_path: Path) -> None:
    """Scheduler, scaler, moving average, early stopping and accumulation in one run that is stopped half-way."""
    settings: dict[str, Any] = {
        "epochs": 4,
        "precision": "fp16",
        "ema": 0.9,
        "accumulate": 2,
        "schedule": {"name": "plateau", "epochs": 1},
        "early_stopping": {"patience": 50},
        "checkpoint_minutes": 1e-5,
    }
    whole = train(flat, tmp_path / "whole", **settings)
    with pytest.raises(StoppedError):
        train(flat, tmp_path / "run", stop_after=29, **settings)
    run = resume(tmp_path / "run")
    assert 0 < (run.last("resume") or {})["step"] < (whole.last("step") or {})["step"]
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(run).items())


def test_two_runs_cannot_have_one_folder(flat: Dataset, tmp_path: Path) -> None:
    train(flat, tmp_path / "run", epochs=1)
    with pytest.raises(clew.errors.RunError, match="exists already; name another folder with --output"):
        train(flat, tmp_path / "run", epochs=1)


def test_a_full_disk_is_reported_and_existing_files_stay(flat: Dataset, tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).parent / "clew"),
        "train",
        str(RECIPES / "line.py"),
        "--dataset",
        str(flat.path),
    ]
    more = ["--epochs", "1", "--set", "wide=4000", "--set", "train.threads=1", "--output", str(tmp_path / "run")]
    limited = ["bash", "-c", 'ulimit -f 64 && exec "$@"', "bash", *command, *more]  # no file above 64 kB
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "last.safetensors: cannot be written" in done.stderr
    run = Run.open(tmp_path / "run")
    assert run.state == "failed"
    assert not run.states()


def test_a_column_to_bucket_by_must_be_ragged(flat: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'x' is not a ragged column"):
        train(flat, tmp_path / "run", loading={"bucket": "x"})
    with pytest.raises(ConfigError, match="max_items needs bucket"):
        train(flat, tmp_path / "other", loading={"max_items": 5})
