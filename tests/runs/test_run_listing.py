"""A listed run: the facts of its whole records, read from their two ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clew.runs import Run, list_runs
from clew.runs.listing import list_run
from clew.runs.summary import summarize
from tests.runs import end, fresh, lines, plan, start, training, written


def test_a_trained_run_is_what_its_summary_says(run: Run) -> None:
    short, whole = list_run(run), summarize(run)
    for name in ("name", "state", "recipe", "workers", "epochs", "epochs_done", "seconds", "metrics", "message"):
        assert getattr(short, name) == getattr(whole, name), name
    assert short.times.samples_per_second > 0


def test_a_run_without_records_is_created(tmp_path: Path) -> None:
    summary = list_run(fresh(tmp_path / "run"))
    assert (summary.name, summary.state, summary.recipe, summary.started) == ("run", "created", "tracking", 0.0)


def test_a_run_in_progress_is_listed_up_to_its_last_record(tmp_path: Path) -> None:
    run = written(tmp_path / "run", start(pid=os.getpid(), ranks=2), plan(), *training(2))
    stream = run.records_folder / "rank-0.jsonl"
    text = stream.read_text().replace('"time": 1', '"time": 9')  # the process must not be younger than its record
    stream.write_text(text + '{"seq": 99, "ki')
    summary = list_run(run)
    assert (summary.state, summary.workers, summary.epochs_done, summary.epochs) == ("running", 2, 2, 3)
    assert summary.metrics == {"loss": 0.5, "f1": 1 - 1 / 3}


def test_the_speed_is_that_of_the_newest_steps(tmp_path: Path) -> None:
    summary = list_run(written(tmp_path / "run", start(), plan(30, 40), *training(30, 40), end()))
    assert summary.times.samples_per_second == pytest.approx(640)
    assert summary.epochs_done == 30


def test_the_speed_of_a_first_step_counts_from_the_start(tmp_path: Path) -> None:
    summary = list_run(written(tmp_path / "run", start(), plan(), *training(1, 1)))
    assert summary.times.samples_per_second == pytest.approx(640)


def test_a_killed_run_has_the_message_of_the_rank_that_failed(tmp_path: Path) -> None:
    run = written(tmp_path / "run", start(ranks=2), plan(), *training(1))
    (run.records_folder / "rank-1.jsonl").write_text(lines([start(rank=1, ranks=2), end("failed", "boom")]))
    summary = list_run(run)
    assert (summary.state, summary.message) == ("failed", "boom")


def test_steps_that_a_resumed_run_repeats_do_not_count_yet(tmp_path: Path) -> None:
    again = {"kind": "resume", "epoch": 1, "step": 4, "file": "x", "damaged": []}
    run = written(tmp_path / "run", start(), plan(), *training(3), start(), again, plan(), *training(1, first=1)[:2])
    assert list_run(run).epochs_done == summarize(run).epochs_done == 1
    assert list_run(run).metrics == summarize(run).metrics


def test_a_resumed_run_does_not_show_an_old_message(tmp_path: Path) -> None:
    run = written(tmp_path / "run", start(), end("stopped", "stopped at step 3"), start())
    assert list_run(run).message == summarize(run).message == ""


def test_a_long_run_without_a_validation_is_read_to_its_beginning(tmp_path: Path) -> None:
    steps = [each for each in training(40, 20) if each["kind"] == "step"]
    summary = list_run(written(tmp_path / "run", start(), *steps, end()))
    assert (summary.state, summary.metrics, summary.epochs, summary.epochs_done) == ("finished", {}, 0, 0)


@pytest.mark.parametrize("recipe", ["", "a: b", "null", "2024", "x" * 70 + " y" * 40, "é/rec.py", "- #1"])
def test_a_recipe_may_be_called_anything(tmp_path: Path, recipe: str) -> None:
    assert list_run(written(tmp_path / "run", recipe=recipe)).recipe == recipe


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(tmp_path / name, start(), end())
    (tmp_path / "a" / "records" / "rank-0.jsonl").write_text("}{\n")
    summaries = [list_run(run) for run in list_runs(tmp_path)]
    assert [each.state for each in summaries] == ["damaged", "finished"]
    assert "damaged record" in summaries[0].message


@pytest.mark.slow
def test_a_thousand_runs_are_listed(tmp_path: Path) -> None:
    text = lines([start(), plan(10, 30), *training(10, 30), end()])
    config, environment = "recipe: tracking\ntrain:\n  epochs: 10\n", "{}"
    for number in range(1000):
        run = Run(tmp_path / f"run-{number:03d}")
        run.records_folder.mkdir(parents=True)
        run.config_file.write_text(config)
        run.environment_file.write_text(environment)
        (run.records_folder / "rank-0.jsonl").write_text(text)
    summaries = [list_run(run) for run in list_runs(tmp_path)]
    assert len(summaries) == 1000
    assert {(each.state, each.epochs_done, each.recipe) for each in summaries} == {("finished", 10, "tracking")}
