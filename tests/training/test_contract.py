"""Strategies with further settings, and every way to start their processes. `test_strategies` has their contract.

Accounting: every sample is used exactly once per epoch, all ranks end. Exact: the result is that of one process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clew
from clew import Dataset, Run, Table
from clew.errors import ConfigError, RecipeError, StoppedError
from clew.runs.summary import summarize
from clew.training.api import resume
from clew.training.strategies.allreduce import group_parameters
from tests.training import losses, recipe, validations, weights
from tests.training.driver import STRATEGIES, train

pytestmark = pytest.mark.timeout(240)

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
STREAMED = ("disk", "blosc")
"""These make other batches than samples in memory do, so they are compared with each other."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("chain")
    x = np.random.default_rng(3).normal(size=(240, 3)).astype(np.float32)
    Table({"x": x, "y": np.tanh(x @ [1, -2, 0.5]).astype(np.float32)}).save(folder / "events.h5")
    source, shares = [str(folder / "events.h5")], {"train": 0.8, "val": 0.2}
    return clew.prepare(recipe("chain"), input=source, output=str(folder / "set"), split=shares, workers=1)


@pytest.fixture(scope="module")
def alone(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same training in one process."""
    folder = tmp_path_factory.mktemp("alone")
    return cache(lambda name: train(str(data.path), folder, name, workers=1))


def launch(how: str, ranks: int, data: Dataset, folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    starter = {
        "torchrun": [
            str(BIN / "torchrun"),
            "--standalone",
            "--nproc-per-node",
            str(ranks),
            "-m",
            "tests.training.driver",
        ],
        "mpiexec": [str(BIN / "mpiexec"), "-n", str(ranks), sys.executable, "-m", "tests.training.driver"],
    }[how]
    command = [*starter, str(data.path), str(folder), *names]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, env={**os.environ})


def check(run: Run, one: Run, name: str, ranks: int) -> None:
    assert run.state == "finished"
    assert len(run.streams()) == ranks
    for stream in run.streams():
        end = run.last("end", stream)
        assert end is not None and end["status"] == "finished"
    sample_counts = Counter(
        line for file in (run.path.parent / f"{name}-samples").iterdir() for line in file.read_text().split()
    )
    samples = {str(number) for number in Dataset(run.config().data["train"]["dataset"]).read("train").fixed("number")}
    assert sample_counts == Counter(dict.fromkeys(samples, 2)), "every sample once in each of two epochs"
    loose = 30 if name == "compressed" else 1
    for key, tensor in weights(one).items():
        torch.testing.assert_close(weights(run)[key], tensor, rtol=1e-4 * loose, atol=2e-5 * loose)
    for loss, reference in zip(losses(run), losses(one), strict=True):
        assert loss["loss"] == pytest.approx(reference["loss"], rel=1e-4 * loose)
    assert validations(run)[-1]["loss"] == pytest.approx(validations(one)[-1]["loss"], rel=1e-4 * loose)


@pytest.mark.parametrize("name", STRATEGIES)
def test_local_workers_do_what_one_process_does(name: str, data: Dataset, alone: Any, tmp_path: Path) -> None:
    check(train(str(data.path), tmp_path, name, workers=3), alone(name), name, 3)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("how", ["torchrun", "mpiexec"])
def test_launched_ranks_do_what_one_process_does(
    how: str, ranks: int, data: Dataset, alone: Any, tmp_path: Path
) -> None:
    done = launch(how, ranks, data, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in STRATEGIES:
        check(Run.open(tmp_path / name), alone(name), name, ranks)


def test_samples_streamed_from_disk_and_from_compressed_memory_are_the_same(alone: Any) -> None:
    disk, blosc = (weights(alone(name)) for name in STREAMED)
    assert all(torch.equal(tensor, blosc[key]) for key, tensor in disk.items())


@pytest.mark.parametrize("strategy", ["allreduce", "sharded"])
def test_batch_norm_over_all_ranks_is_that_of_one_process(strategy: str, data: Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 25, "threads": 1, "optimizer": {"lr": 0.01}}
    normed = recipe("chain", norm=True)
    together: dict[str, Any] = {"strategy": strategy, "buffers": "synchronize"}
    one = clew.train(normed, data, output=tmp_path / "one", **settings)
    two = clew.train(normed, data, output=tmp_path / "two", workers=2, **together, **settings)
    for key, tensor in weights(one).items():
        torch.testing.assert_close(weights(two)[key], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("strategy", ["allreduce", "sharded"])
def test_statistics_of_batch_norm_resume_to_the_bit(strategy: str, data: Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 25, "threads": 1, "ema": 0.9, "checkpoint_minutes": 1e-5}
    chain = recipe("chain", norm=True)
    together: dict[str, Any] = {"workers": 2, "strategy": strategy}
    whole = clew.train(chain, data, output=tmp_path / "whole", **together, **settings)
    with pytest.raises(StoppedError):
        clew.train(chain, data, output=tmp_path / "run", time_limit_minutes=0.0005, **together, **settings)
    run = resume(tmp_path / "run", time_limit_minutes=10)
    for key, tensor in weights(whole).items():
        assert torch.equal(weights(run)[key], tensor), key


@pytest.mark.long
@pytest.mark.parametrize("how", ["torchrun", "mpiexec"])
def test_a_launched_rank_that_fails_fails_the_run_with_its_message(how: str, data: Dataset, tmp_path: Path) -> None:
    done = launch(how, 2, data, tmp_path, "failing")
    assert done.returncode != 0
    run = Run.open(tmp_path / "failing")
    assert run.state == "failed"
    assert "boom on purpose" in summarize(run).message


def test_a_model_that_is_no_chain_cannot_be_cut(flat: Dataset, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="only recipes that define loss"):
        clew.train(recipe("line"), flat, output=tmp_path / "run", workers=2, strategy="pipeline")
    with pytest.raises(ConfigError, match="needs 3 stages, one per worker; 2 entries of"):
        clew.train(recipe("line"), flat, output=tmp_path / "short", workers=3, strategy="pipeline")


def test_gradients_of_many_buckets_are_summed_during_backward(data: Dataset, tmp_path: Path) -> None:
    """A million parameters: more than one bucket, so the first are sent from hooks."""
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 50, "threads": 1, "optimizer": {"lr": 1e-3}}
    wide = recipe("chain", wide=1000)
    one = clew.train(wide, data, output=tmp_path / "one", **settings)
    two = clew.train(wide, data, output=tmp_path / "two", workers=2, **settings)
    assert len(group_parameters(list(wide.model().parameters()))) > 1
    for key, tensor in weights(one).items():
        torch.testing.assert_close(weights(two)[key], tensor, rtol=1e-3, atol=1e-4)
