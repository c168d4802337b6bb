"""A run that fails says why, says so in its folder, and leaves no process behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

import clew
from clew import Dataset, Run, Table
from clew.errors import ClewError, DataError, RecipeError, WorkerError
from tests.training import recipe

pytestmark = pytest.mark.timeout(60)


def fail(data: Dataset, output: Path, fault: str, *, workers: int, rank: int = 1, **settings: Any) -> ClewError:
    faulty = recipe("line", fault=fault, rank=rank)
    with pytest.raises(ClewError) as caught:
        clew.train(faulty, data, epochs=2, workers=workers, threads=1, output=output, **settings)
    assert not any(psutil.pid_exists(start["pid"]) for start in starts(output) if workers > 1)
    return caught.value


def starts(folder: Path) -> list[dict[str, Any]]:
    run = Run.open(folder)
    return [record for stream in run.streams() for record in run.records(stream, "start")]


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_on_one_rank_ends_the_run_with_its_message(flat: Dataset, tmp_path: Path, rank: int) -> None:
    error = fail(flat, tmp_path / "run", "raise", workers=2, rank=rank)
    assert isinstance(error, RecipeError)
    assert "line.py:" in str(error) and "ValueError: boom on purpose, in step(): `raise ValueError(" in str(error)
    run = Run.open(tmp_path / "run")
    assert run.state == "failed"
    assert str(error) in [end["message"] for end in run.records(f"rank-{rank}", "end")]
    last = run.last("end")
    assert last is not None and last["message"] == str(error)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_rank_ends_the_run_with_its_number(flat: Dataset, tmp_path: Path, rank: int) -> None:
    error = fail(flat, tmp_path / "run", "kill", workers=3, rank=rank)
    assert isinstance(error, WorkerError)
    assert str(error) == f"rank {rank} died without a message (exit code -9)"
    assert Run.open(tmp_path / "run").state == "failed"


def test_a_users_error_in_a_worker_stays_one(flat: Dataset, tmp_path: Path) -> None:
    error = fail(flat, tmp_path / "run", "user", workers=2)
    assert type(error) is DataError
    assert str(error) == "wrong data on purpose"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loss_that_is_not_a_number_stops_the_run(flat: Dataset, tmp_path: Path, workers: int) -> None:
    error = fail(flat, tmp_path / "run", "nan", workers=workers, rank=0)
    assert "loss is nan at step 1; lower train.optimizer.lr or set train.clip; its samples are in " in str(error)
    run = Run.open(tmp_path / "run")
    assert len(Table.load(str(error).rpartition(" in ")[2])) == (32 if workers == 2 else 64)
    assert run.state == "failed"
    assert not run.checkpoint("best").exists()


def test_an_exception_in_a_single_process_is_the_cause_of_the_error(flat: Dataset, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="boom on purpose") as caught:
        clew.train(recipe("line", fault="raise", rank=0), flat, epochs=1, output=tmp_path / "run")
    run = Run.open(tmp_path / "run")
    end = run.last("end")
    assert run.state == "failed"
    assert end is not None and end["message"] == str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


def test_training_again_after_a_failure_works(flat: Dataset, tmp_path: Path) -> None:
    fail(flat, tmp_path / "bad", "raise", workers=2)
    run = clew.train(recipe("line"), flat, epochs=1, workers=2, threads=1, output=tmp_path / "good")
    assert run.state == "finished"
