"""Processes that compute metrics while the network runs: the same metrics, and never a reason to fail."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import clew
from clew import Recipe, Table
from clew.errors import RecipeError
from clew.training.metric_workers import MetricWorkers, metric_worker_limit
from tests.training import recipe as make
from tests.training import validations

BATCHES = 12


def recipe(**settings: Any) -> Recipe:
    return make("where", main=os.getpid(), **settings)


def batch(number: int, size: int = 5) -> tuple[Table, dict[str, Any]]:
    numbers = np.arange(size) + 100 * number
    samples = Table({"event": numbers, "x": np.ones((size, 3), np.float32), "y": np.ones(size, np.float32)})
    return samples, {"output": numbers.astype(np.float32)}


@contextlib.contextmanager
def ready(workers: MetricWorkers) -> Iterator[MetricWorkers]:
    """Workers of which at least one process is ready."""
    with contextlib.closing(workers):
        workers.submit(*batch(0)).result()
        while workers.limit and not workers.running:
            workers.receive(wait=False)
            time.sleep(0.01)
        yield workers


def test_other_processes_compute_the_same_metrics_in_the_same_order() -> None:
    with ready(MetricWorkers(recipe(), 2, start_seconds=0.0)) as workers:
        sizes = [5, 5000, 0, 70, 1] * 2  # memory grows, and is used again
        tasks = [workers.submit(*batch(number, size + 1)) for number, size in enumerate(sizes)]
        results = [task.result() for task in tasks]
    assert [each["elsewhere"].value for each in results] == [1.0] * len(sizes)
    assert [each["first"].value for each in results] == [100.0 * number for number in range(len(sizes))]
    means = [float(batch(number, size + 1)[1]["output"].mean()) for number, size in enumerate(sizes)]
    assert [each["output"].value for each in results] == pytest.approx(means)


def test_metrics_are_computed_here_until_they_have_taken_a_while() -> None:
    with contextlib.closing(MetricWorkers(recipe(), 2, start_seconds=1e9)) as workers:
        assert [workers.submit(*batch(0)).result()["elsewhere"].value for _ in range(3)] == [0.0] * 3
        assert not workers.running


def test_a_batch_whose_process_was_killed_is_computed_here() -> None:
    with ready(MetricWorkers(recipe(killed=True), 2, start_seconds=0.0)) as workers:
        tasks = [workers.submit(*batch(number)) for number in range(BATCHES)]
        results = [task.result() for task in tasks]
        assert not workers.running
    assert [each["elsewhere"].value for each in results] == [0.0] * BATCHES
    assert [each["first"].value for each in results] == [100.0 * number for number in range(BATCHES)]


def test_an_error_in_the_metrics_names_the_samples() -> None:
    failing = recipe(fails=True)
    workers = MetricWorkers(failing, 1, start_seconds=0.0)
    with contextlib.closing(workers), pytest.raises(RecipeError, match="samples 0-4"):
        workers.submit(*batch(0), "samples 0-4").result()


def test_a_recipe_that_no_other_process_can_load_is_computed_here() -> None:
    class Local(type(recipe())):  # type: ignore[misc]
        """Its class has no name in a module."""

    with contextlib.closing(MetricWorkers(Local(recipe().config), 2, start_seconds=0.0)) as workers:
        assert [workers.submit(*batch(0)).result()["elsewhere"].value for _ in range(3)] == [0.0] * 3
        assert not workers.running


@pytest.mark.exec  # the names of processes
def test_no_process_stays_when_the_workers_are_closed() -> None:
    with ready(MetricWorkers(recipe(), 3, start_seconds=0.0)):
        assert [child for child in _children() if "metric_workers" in child]
    assert not [child for child in _children() if "metric_workers" in child]


def _children() -> list[str]:
    children = psutil.Process().children(recursive=True)
    return [" ".join(each.cmdline()) for each in children if each.status() != psutil.STATUS_ZOMBIE]


def test_the_limit_depends_on_the_device_and_the_ranks_of_the_machine() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    cores = len(os.sched_getaffinity(0))
    assert metric_worker_limit(None, cpu) == 0 and metric_worker_limit(3, cpu) == 3
    assert metric_worker_limit(None, gpu) == cores - 1
    assert metric_worker_limit(None, gpu, cores) == 0


@pytest.fixture
def dataset(tmp_path: Path) -> clew.Dataset:
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(400, 3)).astype(np.float32)
    Table({"event": np.arange(400), "x": x, "y": x.sum(1)}).save(tmp_path / "events.h5")
    return clew.prepare(recipe(), input=[str(tmp_path / "events.h5")], output=str(tmp_path / "data"), workers=1)


def test_validations_and_evaluations_do_not_depend_on_the_workers(dataset: clew.Dataset, tmp_path: Path) -> None:
    results = []
    for workers in (0, 2):
        slow = recipe(seconds=0.05 if workers else 0.0)
        run = clew.train(
            slow, dataset, output=tmp_path / f"run-{workers}", epochs=12, batch_size=4, metric_workers=workers
        )
        evaluation = clew.evaluate(run, split="train", batch_size=4)
        results.append((validations(run)[-1], {name: metric.value for name, metric in evaluation.metrics.items()}))
    (validation, values), (other_validation, other_values) = results
    assert other_validation.pop("elsewhere") == 1.0 and validation.pop("elsewhere") == 0.0
    assert 0 < other_values.pop("elsewhere") <= 1.0 and values.pop("elsewhere") == 0.0
    assert other_validation == validation and other_values == values
