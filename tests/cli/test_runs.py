"""`clew runs`: lists that fit the terminal, sorted and filtered; comparisons."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clew import Run
from clew.cli.text_table import Column, fit
from tests.cli import clew, done
from tests.runs import end, plan, start, training, written


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs: one finished with the best f1, one that failed, and one killed before a validation."""
    root = tmp_path / "runs"
    written(root / "a", start(), plan(), *training(3), end())
    written(root / "b", start(), plan(), *training(1), end("failed", "the loss is nan"))
    written(root / "c", start(), plan(), *training(1)[:2])
    return root


def names(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:]]


def test_runs_are_chosen_by_state(runs: Path) -> None:
    assert names(done("runs", "list", runs, "--state", "failed")) == ["b"]
    assert names(done("runs", "list", runs, "--state", "failed", "--state", "finished")) == ["a", "b"]
    assert f"none of 3 runs in {runs} is stopped" in done("runs", "list", runs, "--state", "stopped")


def test_runs_are_sorted_by_a_metric_and_those_without_it_come_last(runs: Path) -> None:
    assert names(done("runs", "list", runs, "--sort", "f1")) == ["a", "b", "c"]
    assert names(done("runs", "list", runs, "--sort", "f1", "--reverse")) == ["b", "a", "c"]


def test_runs_are_sorted_by_time_newest_first(runs: Path) -> None:
    stream = runs / "b" / "records" / "rank-0.jsonl"
    stream.write_text(stream.read_text().replace('"time": 1', '"time": 2'))
    assert names(done("runs", "list", runs, "--sort", "time"))[0] == "b"
    assert names(done("runs", "list", runs, "--sort", "time", "--reverse"))[-1] == "b"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--state", "fialed"), "--state fialed: no such state; did you mean 'failed'?"),
        (("--sort", "f2"), "--sort f2: no run has it; choose from f1, loss, name, time"),
    ],
)
def test_a_state_or_metric_that_is_not_there_is_reported(runs: Path, words: tuple[str, ...], message: str) -> None:
    outcome = clew("runs", "list", runs, *words)
    assert (outcome.code, outcome.err) == (2, f"clew: {message}\n")


def test_runs_are_chosen_sorted_and_shown_by_settings_and_metrics(runs: Path) -> None:
    words = ("--where", "epochs_done > 0", "--sort", "-f1", "--columns", "f1,epochs")
    lines = done("runs", "list", runs, *words).splitlines()
    assert lines[0].split() == ["run", "state", "f1", "epochs"]
    assert names("\n".join(lines)) == ["a", "b"]


def test_runs_are_listed_for_other_programs(runs: Path) -> None:
    listed_runs = json.loads(done("runs", "list", runs, "--json", "--sort", "f1"))
    assert [each["state"] for each in listed_runs] == ["finished", "failed", "interrupted"]
    assert listed_runs[1]["message"] == "the loss is nan"
    assert json.loads(done("runs", "list", runs / "none", "--json")) == []


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_list_fits_the_terminal(runs: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = done("runs", "list", runs)
    assert all(len(line) <= width for line in text.splitlines())
    assert len(text.splitlines()) == 4
    assert ("the loss is nan" in text) == (width >= 120)
    assert "failed" in text


def test_columns_go_before_cells_are_cut() -> None:
    columns = [Column("run", ["a" * 20]), Column("state", ["fine"]), Column("x", ["1"], rank=2), Column("y", ["2"], 1)]
    assert fit(columns, width=99)[1] == "a" * 20 + "  fine   1  2"
    assert fit(columns, width=31)[1] == "a" * 20 + "  fine   2"
    assert fit(columns, width=20)[1] == "a" * 12 + "…  fine"


def test_runs_are_compared(runs: Path) -> None:
    text = done("compare", runs / "a", runs / "b", runs / "c")
    for part in ("Runs", "Settings: identical", "Quality", "Over samples", "Over time", "the loss is nan"):
        assert part in text
    assert "Over energy" not in text


def test_runs_are_compared_at_80_columns_and_shown_as_json(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = done("runs", "compare", runs / "a", runs / "b", runs / "c")
    assert "Quality" in text and max(map(len, text.splitlines())) <= 80
    shown = json.loads(done("runs", "show", runs / "a", "--json"))
    assert (shown["state"], shown["epochs_done"], shown["evaluations"]) == ("finished", 3, {})
    assert shown["times"]["train_seconds"] > 0


def test_a_comparison_is_written_as_a_page(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "pages" / "compare.html"
    assert done("compare", runs / "a", runs / "c", "--html", page) == f"{page}\n"
    assert "2 runs compared" in page.read_text()


def test_comparing_one_run_or_none_that_exists_is_reported(runs: Path) -> None:
    assert "name two runs or more" in clew("compare", runs / "a").err
    assert "no such run" in clew("compare", runs / "a", runs / "d").err


def test_a_killed_run_is_shown_with_what_is_known(runs: Path) -> None:
    text = " ".join(done("runs", "show", runs / "c").split())
    assert "c interrupted it ended without a message" in text
    assert "last step recorded step 2, epoch 1" in text


def test_listing_writes_nothing(runs: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    done("runs", "list", runs)
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before
    assert Run.open(runs / "a").state == "finished"


def test_runs_are_selected_by_a_query(runs: Path) -> None:
    assert names(done("runs", "list", runs, "--where", "state = failed")) == ["b"]
    assert names(done("runs", "list", runs, "--where", "f1 > -1 and not state:failed"))[:1] == ["a"]
    outcome = clew("runs", "list", runs, "--where", "f1 <")
    assert outcome.code == 2 and "f1 <: a value is missing at character 5" in outcome.err
