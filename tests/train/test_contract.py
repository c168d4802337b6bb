"""What every strategy promises, however its processes were started.

Accounting: every sample is learned from exactly once an epoch, all ranks end. Exact: the result is that of one process.
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
from tests.train import losses, recipe, validations, weights
from tests.train.driver import STRATEGIES, train

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
        "torchrun": [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(ranks), "-m", "tests.train.driver"],
        "mpiexec": [str(BIN / "mpiexec"), "-n", str(ranks), sys.executable, "-m", "tests.train.driver"],
    }[how]
    command = [*starter, str(data.path), str(folder), *names]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, env={**os.environ})


def check(run: Run, one: Run, name: str, ranks: int) -> None:
    assert run.state == "finished"
    assert len(run.streams()) == ranks
    for stream in run.streams():
        end = run.last("end", stream)
        assert end is not None and end["status"] == "finished"
    seen = Counter(
        line for file in (run.path.parent / f"{name}-samples").iterdir() for line in file.read_text().split()
    )
    samples = {str(number) for number in Dataset(run.config().data["train"]["dataset"]).read("train").fixed("number")}
    assert seen == Counter(dict.fromkeys(samples, 2)), "every sample once in each of two epochs"
    loose = 30 if name == "compressed" else 1
    for key, tensor in weights(one).items():
        torch.testing.assert_close(weights(run)[key], tensor, rtol=1e-4 * loose, atol=2e-5 * loose)
    for mine, theirs in zip(losses(run), losses(one), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4 * loose)
    assert validations(run)[-1]["loss"] == pytest.approx(validations(one)[-1]["loss"], rel=1e-4 * loose)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("name", STRATEGIES)
def test_local_workers_do_what_one_process_does(
    name: str, workers: int, data: Dataset, alone: Any, tmp_path: Path
) -> None:
    check(train(str(data.path), tmp_path, name, workers=workers), alone(name), name, workers)


@pytest.mark.parametrize("ranks", [1, 2, 3])
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
