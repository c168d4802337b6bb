"""Predictions and figures are the same for any number of ranks and any size of batches, and in every kind of file."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import clew
from clew import Dataset, Ragged, Run, Table, concat, readers
from clew.data.table import hdf5
from clew.errors import ConfigError, DataError, RecipeError, RunError
from clew.inference import parallel_inference
from clew.inference.evaluate import EvaluationWork
from clew.inference.predict import PredictionRows, PredictionWork
from clew.inference.sample_sources import DatasetSplit, RawEvents
from clew.jobs.rank_info import RankInfo, open_store_at
from clew.runs.environment import allowed_cores
from clew.training import checkpoint
from clew.training.run_recipe import recipe_of_run
from tests.training import recipe

EVENTS = 90
BIN = Path(sys.executable).parent
STARTERS = {
    "torchrun": [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"],
    "mpiexec": [str(BIN / "mpiexec"), "-n", "3", sys.executable],
}


def assert_equal(left: Table, right: Table) -> None:
    """To the bit, shared items included."""
    assert list(left) == list(right) and len(left) == len(right)
    assert hdf5.item_sets(left) == hdf5.item_sets(right)
    for name, column in left.items():
        other: Any = right[name]
        if isinstance(column, Ragged):
            np.testing.assert_array_equal(column.offsets, other.offsets, name)
            column, other = column.values, other.values
        assert column.dtype == other.dtype
        np.testing.assert_array_equal(column, other, name)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 4, EVENTS)
    columns: dict[str, Any] = {
        "event": np.arange(EVENTS),
        "x": rng.integers(-3, 4, (EVENTS, 3)).astype(np.float32),
        "y": rng.integers(-6, 7, EVENTS).astype(np.float32),
        "hits": Ragged.from_lengths(rng.integers(0, 9, lengths.sum()).astype(np.float32), lengths),
        "weight": rng.integers(-4, 9, EVENTS) / 8,
    }
    path = tmp_path_factory.mktemp("whole") / "events.h5"
    Table(columns).save(path)
    return path


@pytest.fixture(scope="module")
def whole(raw: Path) -> Run:
    """A run whose weights are whole numbers, on a dataset of many shards."""
    work, folder = recipe("whole"), raw.parent
    options: dict[str, Any] = {"split": {"train": 0.1, "val": 0.1, "test": 0.8}, "shard_mb": 0.001}
    data = clew.prepare(work, input=[str(raw)], output=str(folder / "dataset"), workers=1, **options)
    assert len(data.manifest.splits["test"]) > 2
    run = clew.train(work, data, epochs=1, output=folder / "run")
    numbers = {"weight": torch.tensor([[1.0, -2.0, 1.0]]), "bias": torch.tensor([1.0])}
    checkpoint.save(numbers, run.checkpoint("best"), facts={})
    return run


def on_threads(task: parallel_inference.InferenceTask, ranks: int, folder: Path) -> list[Any]:
    """The result of each rank; ranks are threads of this process."""
    results: list[Any] = [None] * ranks
    store = folder / f"meeting-{ranks}-{task.size}-{type(task.work).__name__}"

    def work(rank: int) -> None:
        rank_task = dataclasses.replace(task, work=dataclasses.replace(task.work))  # type: ignore[type-var]
        met = open_store_at(store, rank, ranks) if ranks > 1 else None
        results[rank] = parallel_inference.run_rank(
            rank_task, RankInfo(rank, ranks, rank, ranks), met, lambda done, total: None
        )

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def numbers(tallies: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {part.name: np.asarray(getattr(each, part.name)).tolist() for part in dataclasses.fields(each)}
        for name, each in tallies.items()
    }


@pytest.fixture(scope="module")
def expected(whole: Run) -> tuple[dict[str, Any], Table]:
    """The result of a plain pass over the whole split."""
    work, config = recipe_of_run(whole)
    samples = Dataset(config.dataset).read("test")
    model = work.model()
    checkpoint.load(model, whole.checkpoint("best"))
    from clew.training import validation

    outputs, _ = validation.forward(work, model.eval(), samples, torch.device("cpu"))
    rows = samples.pick("event").join(work.reconstruct(samples, outputs))
    return numbers(validation.evaluate_batch(work, model, samples, torch.device("cpu"))), rows


@settings(max_examples=12)
@given(batch=st.integers(1, EVENTS))
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_metrics_and_rows_are_exact_for_every_batch_size_on_any_number_of_ranks(
    whole: Run, expected: tuple[dict[str, Any], Table], tmp_path_factory: pytest.TempPathFactory, ranks: int, batch: int
) -> None:
    work, config = recipe_of_run(whole)
    folder, split = tmp_path_factory.mktemp("meeting"), DatasetSplit.of(config.dataset, "test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        evaluations = on_threads(
            parallel_inference.InferenceTask(whole, work, "best", split, batch, EvaluationWork()), ranks, folder
        )
        rows = PredictionWork(PredictionRows(), None, None, None)
        tables = on_threads(parallel_inference.InferenceTask(whole, work, "best", split, batch, rows), ranks, folder)
    for each, table in zip(evaluations, tables, strict=True):
        assert each.events == len(expected[1])
        assert numbers(each.metrics) == expected[0]
        assert_equal(table, expected[1])


@pytest.mark.parametrize("batch", range(1, 24))
def test_every_small_batch_size_is_exact(whole: Run, expected: tuple[dict[str, Any], Table], batch: int) -> None:
    assert numbers(clew.evaluate(whole, batch_size=batch).metrics) == expected[0]


@pytest.mark.parametrize("workers", [2, 3])
def test_processes_give_what_one_gives_in_a_network_that_rounds(run_copy: Run, tmp_path: Path, workers: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, allowed_cores() // workers))
    try:
        alone = clew.predict(run_copy, batch_size=5, columns=["event", "x"])
        evaluation = clew.evaluate(run_copy, batch_size=5, name="alone")
    finally:
        torch.set_num_threads(before)
    updates: list[tuple[int, int | None]] = []
    together = clew.predict(
        run_copy, batch_size=5, columns=["event", "x"], workers=workers, progress=lambda *counts: updates.append(counts)
    )
    assert isinstance(alone, Table) and isinstance(together, Table)
    assert_equal(together, alone)
    assert updates[-1] == (len(alone), len(alone)) and updates == sorted(updates)
    again = clew.evaluate(run_copy, batch_size=5, name="together", workers=workers)
    assert numbers(again.metrics) == numbers(evaluation.metrics)
    assert (run_copy.plots / "together").is_dir()


@pytest.mark.long
@pytest.mark.parametrize("how", STARTERS)
def test_ranks_of_a_launcher_share_the_work(
    how: str, whole: Run, expected: tuple[dict[str, Any], Table], tmp_path: Path
) -> None:
    copied = shutil.copytree(whole.path, tmp_path / "run")
    command = [*STARTERS[how], str(Path(__file__).parent / "ranks.py"), str(copied), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert_equal(Table.load(tmp_path / "out.h5"), expected[1])
    results = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("?.json"))]
    assert len(results) == (2 if how == "torchrun" else 3)
    assert all(each == results[0] for each in results)
    assert results[0][:2] == [str(tmp_path / "out.h5"), len(expected[1])]
    assert [each["name"] for each in Run.open(copied).records("evaluate")].count("launched") == 1


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("ending", ["h5", "parquet", "root"])
def test_every_kind_of_file_holds_the_rows(
    ending: str, workers: int, whole: Run, expected: tuple[dict[str, Any], Table], tmp_path: Path
) -> None:
    path = clew.predict(whole, output=tmp_path / f"out.{ending}", batch_size=7, workers=workers)
    assert path == tmp_path / f"out.{ending}"
    assert list(tmp_path.iterdir()) == [path]
    rows = concat(list(readers.read(str(path))))
    assert_equal(rows.pick("event", "said", "double"), expected[1])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_reader_that_only_goes_forward_is_shared_too(
    whole: Run, raw: Path, tmp_path: Path, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forward(type(recipe("whole"))):  # type: ignore[misc]
        def read(self, path: str) -> Any:
            table = Table.load(path)
            yield from (table.slice(first, first + 11) for first in range(0, len(table), 11))

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    events = RawEvents(whole, Forward(), (str(raw),))
    task = parallel_inference.InferenceTask(
        whole, Forward(), "best", events, 4, PredictionWork(PredictionRows(), None, None, events)
    )
    for rows in on_threads(task, ranks, tmp_path):
        assert rows.fixed("event").tolist() == list(range(EVENTS))


def test_pieces_of_raw_events_are_shared_among_ranks(run: Run, events: Path) -> None:
    alone, shared = (clew.predict(run, input=[str(events)], workers=workers) for workers in (1, 2))
    assert isinstance(alone, Table) and isinstance(shared, Table)
    assert alone.fixed("event").tolist() == shared.fixed("event").tolist() == list(range(300))
    track_numbers = alone.ragged("found_track")
    np.testing.assert_array_equal(track_numbers.values, shared.ragged("found_track").values)
    lowest = [each[each >= 0].min() for each in track_numbers if (each >= 0).any()]
    assert set(lowest) == {0}, "tracks are counted in each event"


def test_columns_and_raw_outputs_are_chosen(whole: Run) -> None:
    chosen = clew.predict(whole, columns=["y", "hits"], raw=True)
    assert isinstance(chosen, Table)
    assert list(chosen) == ["y", "hits", "said", "double"]
    assert chosen.items_with("hits") == ["hits", "double"]


def test_events_without_labels_can_be_predicted(whole: Run, raw: Path, tmp_path: Path) -> None:
    Table.load(raw).drop("y", "weight").save(tmp_path / "unknown.h5")
    predictions, labelled = (clew.predict(whole, input=[str(path)]) for path in (tmp_path / "unknown.h5", raw))
    assert isinstance(predictions, Table) and isinstance(labelled, Table)
    assert_equal(predictions, labelled)


def test_a_network_that_takes_gradients_is_run_without_inference_mode(whole: Run) -> None:
    class Slope(type(recipe("whole"))):  # type: ignore[misc]
        location = ""

        def forward(self, model: Any, batch: Any) -> Any:
            with torch.enable_grad():
                x = batch["x"].clone().requires_grad_()
                (slope,) = torch.autograd.grad(model(x).sum(), x)
            return {"said": slope[:, 0], "double": 2 * batch["hits"]}

    predictions = clew.predict(whole, recipe=Slope())
    assert isinstance(predictions, Table)
    assert set(predictions.fixed("said").tolist()) == {1.0}


def test_an_existing_file_is_replaced_only_on_request(whole: Run, tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    path.write_text("mine")
    with pytest.raises(ConfigError, match=r"out\.h5 exists already; name another --output, or use --replace"):
        clew.predict(whole, output=path)
    assert path.read_text() == "mine"
    clew.predict(whole, output=path, replace=True)
    assert list(Table.load(path)) == ["event", "said", "double"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_prediction_leaves_no_file(whole: Run, tmp_path: Path, workers: int) -> None:
    with pytest.raises(DataError, match="no column 'hit' in the table; did you mean 'hits'"):
        clew.predict(whole, output=tmp_path / "out.h5", columns=["hit"], workers=workers)
    assert not list(tmp_path.iterdir())


def test_a_column_that_the_model_needs_is_named(whole: Run, tmp_path: Path, run_copy: Run) -> None:
    data = Dataset(recipe_of_run(whole)[1].dataset)
    with pytest.raises(DataError, match=r"no column 'node', which the model needs; choose from event, hits"):
        clew.evaluate(run_copy, data=data)
    with pytest.raises(DataError, match="no column 'node'"):
        clew.predict(run_copy, data=data)


def test_data_of_another_shape_is_reported(whole: Run, raw: Path, tmp_path: Path) -> None:
    events = Table.load(raw)
    events.join({"x": events.fixed("x")[:, :2]}).save(tmp_path / "narrow.h5")
    with pytest.raises(RecipeError, match=r"RuntimeError: mat1 and mat2.* model and data do not fit: the batch"):
        clew.predict(whole, input=[str(tmp_path / "narrow.h5")])


def test_wrong_arguments_are_reported(run_copy: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such checkpoint"):
        clew.predict(run_copy, weights="first")
    with pytest.raises(ConfigError, match=r"no writer supports files with this name; choose from \.h5"):
        clew.predict(run_copy, output=tmp_path / "out.csv")
    with pytest.raises(ConfigError, match="batch size 0: it must be at least 1"):
        clew.predict(run_copy, batch_size=0)
    with pytest.raises(DataError, match="no raw output has one row per event: output"):
        clew.predict(run_copy, raw=True)
    with pytest.raises(ConfigError, match="column 'found_track' is reconstructed"):
        clew.predict(run_copy, columns=["found_track"])


def test_memory_does_not_grow_with_the_split(whole: Run, expected: tuple[dict[str, Any], Table]) -> None:
    """Units are read one ahead, even if the consumer is slow."""
    work, config = recipe_of_run(whole)
    read: list[int] = []

    class Watched(DatasetSplit):
        def units(self, size: int, ranks: int) -> Any:
            for number, load in enumerate(super().units(size, ranks)):
                read.append(number)
                yield load

    split = DatasetSplit.of(config.dataset, "test")
    task = parallel_inference.InferenceTask(
        whole, work, "best", Watched(split.path, split.split), 2, PredictionWork(PredictionRows(), None, None, None)
    )
    for number, _, _ in parallel_inference.unit_results(task, task.engine(torch.device("cpu")), RankInfo()):
        assert max(read) <= number + 3
    assert len(read) > 8
