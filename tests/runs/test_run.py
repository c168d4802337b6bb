"""The run folder: claiming it, its state, and folders that are not runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clew import settings
from clew.errors import RunError
from clew.runs import Run, list_runs
from clew.runs.folder import follow, next_run_path
from clew.runs.summary import summarize
from tests.runs import CONFIG, begin, fresh


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    fresh(tmp_path / "run")
    with pytest.raises(RunError, match="run exists already; name another folder with --output"):
        fresh(tmp_path / "run")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/run: cannot be made: Not a directory"):
        fresh(tmp_path / "file" / "run")


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    run = Run.open(fresh(tmp_path / "run").path)
    assert run.name == "run"
    assert run.config().data == CONFIG
    assert run.environment() == {"host": "here"}


def test_a_missing_run_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="none: no such run; `clew runs list` shows all runs"):
        Run.open(tmp_path / "none")


@pytest.mark.parametrize("missing", ["config.yaml", "environment.json"])
def test_a_half_written_folder_is_no_run(tmp_path: Path, missing: str) -> None:
    run = fresh(tmp_path / "run")
    (run.path / missing).unlink()
    with pytest.raises(RunError, match="run: not a complete run folder") as caught:
        Run.open(run.path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_of_something_else_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a complete run folder"):
        Run.open(tmp_path)


def test_a_run_without_records_is_created(tmp_path: Path) -> None:
    assert fresh(tmp_path / "run").state == "created"


def test_a_run_whose_process_lives_is_running(tmp_path: Path) -> None:
    run = fresh(tmp_path / "run")
    with run.writer("rank-0") as writer:
        begin(writer)
    assert run.state == "running"


def test_a_run_whose_process_is_dead_is_interrupted(tmp_path: Path) -> None:
    run = fresh(tmp_path / "run")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with run.writer("rank-0") as writer:
        begin(writer, pid=process.pid)
    assert run.state == "interrupted"


def test_a_number_that_a_later_process_took_over_is_not_the_run(tmp_path: Path) -> None:
    run = fresh(tmp_path / "run")
    with run.writer("rank-0") as writer:
        begin(writer)
    stream = run.records_folder / "rank-0.jsonl"
    stream.write_text(json.dumps({**json.loads(stream.read_text()), "time": 1.0}) + "\n")
    assert run.state == "interrupted"


def test_a_run_on_another_machine_is_taken_to_be_running(tmp_path: Path) -> None:
    run = fresh(tmp_path / "run")
    with run.writer("rank-0") as writer:
        begin(writer, host="elsewhere.example", pid=2**22)
    assert run.state == "running"


@pytest.mark.parametrize("status", ["finished", "failed", "interrupted"])
def test_a_run_that_ended_says_how(tmp_path: Path, status: str) -> None:
    run = fresh(tmp_path / "run")
    with run.writer("rank-0") as writer:
        begin(writer)
        writer.write("end", status=status, message="so it was")
    assert run.state == status
    assert summarize(run).message == "so it was"


def test_a_run_started_again_after_its_end_is_running(tmp_path: Path) -> None:
    run = fresh(tmp_path / "run")
    with run.writer("rank-0") as writer:
        begin(writer)
        writer.write("end", status="failed", message="")
        begin(writer)
    assert run.state == "running"


def test_the_next_name_is_the_first_free_one(tmp_path: Path) -> None:
    assert next_run_path(tmp_path / "runs", "tracking").name == "tracking-001"
    for number in (1, 3):
        (tmp_path / f"tracking-{number:03d}").mkdir()
    (tmp_path / "tracking-first").mkdir()
    assert next_run_path(tmp_path, "tracking") == tmp_path / "tracking-002"
    assert next_run_path(tmp_path, "track").name == "track-001"


def test_runs_are_listed_by_name_without_half_written_ones(tmp_path: Path) -> None:
    for name in ("b", "a", "half"):
        fresh(tmp_path / name)
    (tmp_path / "half" / "config.yaml").unlink()
    (tmp_path / "other").mkdir()
    assert [run.name for run in list_runs(tmp_path)] == ["a", "b"]
    assert list_runs(tmp_path / "none") == []


def test_a_trained_run_feeds_its_settings_back_unchanged(run: Run) -> None:
    loaded = settings.load_settings(str(run.path))
    saved = run.config().data
    assert {name: loaded.data[name] for name in saved} == saved
    assert loaded.recipe.config.model.hidden == 16
    assert loaded.train.epochs == 2


def test_the_summary_of_a_trained_run_is_complete(run: Run) -> None:
    summary = summarize(run)
    assert (summary.name, summary.state, summary.recipe) == ("tracking-001", "finished", "tracking")
    assert (summary.epochs, summary.epochs_done, summary.workers) == (2, 2, 1)
    assert summary.times.samples_per_second > 0
    assert sum(summary.times.shares.values()) == pytest.approx(1)
    assert 0 <= (summary.metrics["efficiency"] or 0) <= 1


def test_a_newer_evaluation_takes_the_place_of_one_of_its_name(run_copy: Run) -> None:
    facts = {"data": "x", "metrics": {}, "seconds": 0.1, "checkpoint": "best"}
    with run_copy.writer("evaluate") as writer:
        for events in (1, 2):
            writer.write("evaluation", name="again", events=events, **facts)
    evaluations = run_copy.evaluations()
    assert list(evaluations) == ["test", "again"]
    assert evaluations["again"]["events"] == 2


def test_following_yields_new_records_and_ends_on_request(tmp_path: Path) -> None:
    run, done = fresh(tmp_path / "run"), threading.Event()
    numbers = []
    with run.writer("rank-0") as writer:
        begin(writer)
        for record in follow(run, "rank-0", until=done, pause=0.01):
            numbers.append(record["seq"])
            if len(numbers) < 3:
                writer.write("end", status="failed", message="")
            else:
                done.set()
    assert numbers == [0, 1, 2]


def test_a_moved_run_is_the_same_run(run_copy: Run, tmp_path: Path) -> None:
    moved = Run.open(shutil.move(run_copy.path, tmp_path / "elsewhere"))
    assert moved.state == "finished"
    assert list(moved.evaluations()) == ["test"]
