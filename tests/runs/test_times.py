"""Speed, time per epoch, load time and data wait: what they are, and that records and lists have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Run
from clew.runs.listing import list_run
from clew.runs.summary import summarize
from clew.runs.times import RunTimes, time_figures, time_totals
from tests.runs import begin, end, fresh, plan, start, training, written


def test_the_first_epoch_does_not_count_for_speed_and_time_per_epoch() -> None:
    first, rest = training(1), training(2, first=1)
    for step in (record for record in first if record["kind"] == "step"):
        step["seconds"] *= 100
    times = time_totals([*first, *rest]).times()
    assert times.samples_per_second == pytest.approx(640)
    assert times.seconds_per_epoch == pytest.approx(0.4)
    assert time_totals(first).times().seconds_per_epoch == pytest.approx(40)


def test_an_epoch_counts_when_it_is_complete() -> None:
    records = [record for record in training(2) if record["kind"] == "step"]
    assert time_totals(records[:3]).times().seconds_per_epoch is None
    assert time_totals(records[:6]).times().seconds_per_epoch == pytest.approx(0.4)


def test_the_shares_are_those_of_steps_and_validations() -> None:
    times = time_totals([*training(1), {"kind": "load", "seconds": 3.0}]).times()
    assert times.load_seconds == 3.0
    assert times.parts == pytest.approx({"compute": 0.28, "communicate": 0.08, "data wait": 0.04, "validate": 0.05})
    assert times.shares == pytest.approx({name: part / 0.45 for name, part in times.parts.items()})


def test_every_step_and_validation_has_the_times_so_far(tmp_path: Path) -> None:
    run = fresh(tmp_path / "run")
    with run.writer("rank-0") as writer:
        begin(writer)
        for record in training(2):
            writer.write(**record)
    for number, record in enumerate(history := run.history(), start=1):
        if record["kind"] in ("step", "validation"):
            assert RunTimes.read(record) == time_totals(history[:number]).times()
    assert [r["times"]["epoch_seconds"] for r in history if r["kind"] == "validation"] == pytest.approx([0.4, 0.4])


def test_steps_that_a_resumed_run_repeats_count_once(tmp_path: Path) -> None:
    run = fresh(tmp_path / "run")
    steps = training(1, 8)
    with run.writer("rank-0") as writer:
        begin(writer)
        for record in steps[:6]:
            writer.write(**record)
    with run.writer("rank-0") as writer:
        begin(writer)
        writer.write("resume", epoch=0, step=3, file="step-3.pt", damaged=[])
        for record in steps[3:]:
            writer.write(**record)
    assert list_run(run).times == summarize(run).times == time_totals(steps).times()


def test_a_run_that_resumed_and_did_no_step_has_the_times_of_its_checkpoint(tmp_path: Path) -> None:
    run = fresh(tmp_path / "run")
    steps = training(1, 8)
    with run.writer("rank-0") as writer:
        begin(writer)
        for record in steps[:6]:
            writer.write(**record)
        writer.write("resume", epoch=0, step=3, file="step-3.pt", damaged=[])
    assert list_run(run).times == summarize(run).times == time_totals(steps[:3]).times()


def test_records_of_an_older_version_are_added_up(tmp_path: Path) -> None:
    run = written(tmp_path / "run", start(), plan(), *training(2), end())
    assert list_run(run).times == summarize(run).times
    assert list_run(run).times.samples_per_second == pytest.approx(640)


def test_the_figures_of_a_job_have_every_epoch(run: Run) -> None:
    figures = time_figures(run)
    assert len(figures["epoch_seconds"]) == 2 and figures["load_seconds"] > 0
    assert sum(figures["epoch_seconds"]) == pytest.approx(figures["train_seconds"], abs=1e-5)
