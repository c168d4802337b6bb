"""Strategies on NVIDIA GPUs: `make test-gpu`. A test that needs more GPUs than there are is skipped.

With one GPU per rank, NCCL sends tensors. Two ranks on one GPU use gloo.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clew
from clew import Batch, Dataset, Table
from clew.runs.console_log import ConsoleReader
from clew.testing import StrategyContract
from clew.testing.toys import ToyRegression
from tests.training import losses, weights

pytestmark = pytest.mark.timeout(600)

ON_GPU: dict[str, Any] = {"device": "cuda", "deterministic": True}


class TestAllReduceOfTwoRanksOnOneGpu(StrategyContract):
    pytestmark = pytest.mark.gpu
    strategy, settings = "allreduce", ON_GPU


class TestAllReduceOnTwoGpus(TestAllReduceOfTwoRanksOnOneGpu):
    pytestmark = pytest.mark.gpu(devices=2)


class TestAllReduceOnFourGpus(TestAllReduceOnTwoGpus):
    pytestmark = pytest.mark.gpu(devices=4)
    workers = 4


class TestShardedOnTwoGpus(TestAllReduceOnTwoGpus):
    strategy = "sharded"


class TestShardedOnFourGpus(TestAllReduceOnFourGpus):
    strategy = "sharded"


class TestPipelineOnTwoGpus(TestAllReduceOnTwoGpus):
    strategy, alternates = "pipeline", False


class TestPipelineOnFourGpus(TestAllReduceOnFourGpus):
    strategy, alternates = "pipeline", False


class TestPipelineAtSplitPointsOnTwoGpus(TestPipelineOnTwoGpus):
    model, settings = "branches", {**ON_GPU, "split_points": ["middle", "head"]}


class Recorded(ToyRegression):
    """The regression, whose steps can be recorded."""

    def graph_capacity(self, batch: Batch, precision: str) -> Mapping[str, int] | None:
        return {}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("recorded")
    x = np.random.default_rng(3).normal(size=(2000, 3)).astype(np.float32)
    Table({"x": x, "y": np.tanh(x.sum(1)), "number": np.arange(2000)}).save(folder / "events.h5")
    return clew.prepare(Recorded(), input=[str(folder / "events.h5")], output=str(folder / "data"), workers=1)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(ranks, marks=pytest.mark.gpu(devices=gpus), id=f"{ranks} ranks on {gpus} GPUs")
        for ranks, gpus in ((2, 1), (2, 2), (4, 4))
    ],
)
def test_recorded_steps_of_several_ranks_are_those_of_one_process(ranks: int, data: Dataset, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 64, "log_every": 1, **ON_GPU}
    one = clew.train(Recorded(), data, output=tmp_path / "one", record=False, **settings)
    several = clew.train(Recorded(), data, output=tmp_path / "several", workers=ranks, record="allreduce", **settings)
    assert "cannot be recorded" not in ConsoleReader(several).new_text()
    for loss, reference in zip(losses(several), losses(one), strict=True):
        assert loss["loss"] == pytest.approx(reference["loss"], rel=1e-3)
    for key, tensor in weights(one).items():
        torch.testing.assert_close(weights(several)[key], tensor, rtol=1e-3, atol=1e-4)
