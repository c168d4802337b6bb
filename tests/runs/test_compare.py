"""Comparing runs in any state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clew.errors import RunError
from clew.runs import Run
from clew.runs.comparison import ABSENT, compare_runs, setting_text
from clew.runs.comparison_page import figures, write_comparison
from tests.runs import end, fresh, lines, plan, start, training, written

RESUME = {"kind": "resume", "epoch": 1, "step": 4, "file": "x", "damaged": []}


def pair(folder: Path) -> list[Run]:
    """A finished run and one that failed in its second epoch, with another setting."""
    good = written(folder / "good", start(), plan(), *training(3), end())
    bad = {"recipe": "tracking", "train": {"epochs": 3, "workers": 1, "seed": 7}}
    return [good, written(folder / "bad", start(), plan(), *training(1), end("failed", "boom"), **bad)]


def test_only_settings_that_differ_are_reported(tmp_path: Path) -> None:
    comparison = compare_runs(pair(tmp_path))
    assert comparison.settings == {"train.seed": [ABSENT, 7]}
    assert comparison.environment == {}
    assert [setting_text(value) for value in comparison.settings["train.seed"]] == ["–", "7"]


def test_settings_of_one_recipe_come_after_shared_settings(tmp_path: Path) -> None:
    first = written(tmp_path / "a", recipe="one", model={"width": 1}, train={"epochs": 3})
    second = written(tmp_path / "b", recipe="two", layers=[1, 2], train={"epochs": 4})
    comparison = compare_runs([first, second])
    assert list(comparison.settings) == ["recipe", "train.epochs", "model.width", "layers"]
    assert comparison.settings["layers"] == [ABSENT, [1, 2]]


def test_another_machine_and_another_dataset_are_reported(tmp_path: Path) -> None:
    runs = pair(tmp_path)
    for number, run in enumerate(runs):
        run.environment_file.write_text(json.dumps({"host": "same", "packages": {"torch": f"2.{number}"}}))
        run.dataset_file.write_text(json.dumps({"key": str(number) * 64}))
    differences = compare_runs(runs).environment
    assert differences == {"torch version": ["2.0", "2.1"], "dataset key": ["0" * 16, "1" * 16]}


def test_curves_run_over_samples_and_time(tmp_path: Path) -> None:
    good, bad = compare_runs(pair(tmp_path)).runs
    curve = good.curves["training loss"]
    assert curve.samples == [64 * n for n in range(1, 13)]
    assert curve.seconds[0] == pytest.approx(0.2)
    validation = good.curves["validation f1"]
    assert validation.samples == [256, 512, 768]
    assert validation.values == [0.5, 1 - 1 / 3, 0.75]
    assert len(bad.curves["validation f1"].values) == 1


def test_curves_over_energy_follow_the_monitors_of_all_ranks(tmp_path: Path) -> None:
    monitored, silent = (written(tmp_path / name, start(), *training(1)) for name in ("a", "b"))
    steps = [record["time"] for record in monitored.records(kind="step")]
    for rank in range(2):
        lines = [
            {"seq": i, "time": t, "kind": "usage", "memory": 1, "energy": 10.0 * i}
            for i, t in enumerate((steps[0], steps[-1]))
        ]
        path = monitored.records_folder / f"usage-{rank}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    curves = compare_runs([monitored, silent]).curves("joules")
    assert set(curves["training loss"]) == {"a"}
    assert curves["training loss"]["a"].joules[0] == 0.0
    assert curves["training loss"]["a"].joules[-1] == pytest.approx(20.0)


def test_time_in_which_a_stopped_run_waited_does_not_count(tmp_path: Path) -> None:
    run, other = pair(tmp_path)
    first = lines([start(), plan(), *training(2), end("stopped")])
    second = lines([start(), RESUME, *training(1, first=1), end()], start=2e9, first=first.count("\n"))
    (run.records_folder / "rank-0.jsonl").write_text(first + second)
    curve = compare_runs([run, other]).runs[0].curves["training loss"]
    assert curve.samples == [64 * n for n in range(1, 9)]
    assert curve.seconds == sorted(curve.seconds)
    assert curve.seconds[-1] < 2


def test_scores_have_their_errors_and_gaps(run: Run, tmp_path: Path) -> None:
    scores = compare_runs([run, fresh(tmp_path / "other")]).scores()
    run_score, other_score = scores["test", "efficiency"]
    assert other_score is None
    entry = run.evaluations()["test"]["metrics"]["efficiency"]
    assert run_score is not None and (run_score.value, run_score.error) == (entry["value"], entry["error"])


def test_folders_of_one_name_are_distinguished_by_their_paths(tmp_path: Path) -> None:
    runs = [written(tmp_path / name / "run", start()) for name in "ab"]
    assert [side.name for side in compare_runs(runs).runs] == [str(run.path) for run in runs]


def test_a_comparison_takes_two_different_runs(tmp_path: Path) -> None:
    run = fresh(tmp_path / "run")
    with pytest.raises(RunError, match="name two runs or more"):
        compare_runs([run])
    (tmp_path / "link").symlink_to(run.path)
    with pytest.raises(RunError, match="named twice"):
        compare_runs([run.path, tmp_path / "link"])
    with pytest.raises(RunError, match="none: no such run"):
        compare_runs([run, tmp_path / "none"])


def test_the_page_holds_every_part_and_loads_nothing(run: Run, tmp_path: Path) -> None:
    runs = [run, *pair(tmp_path), fresh(tmp_path / "<b>new"), written(tmp_path / "torn", start(), *training(1))]
    with (runs[-1].records_folder / "rank-0.jsonl").open("a") as stream:
        stream.write('{"seq": 9')
    page = write_comparison(compare_runs(runs), tmp_path / "page.html").read_text()
    body = page.partition("<main>")[2].partition("</main>")[0]
    for part in ("5 runs compared", "Settings that differ", "Quality", "Over samples", "Over time", "bad: boom"):
        assert part in body
    assert "Over energy" not in body
    assert "&lt;b&gt;new" in body and "<b>new" not in body
    assert "src=" not in body and "href=" not in body


def test_more_runs_than_colours_are_distinguished_by_dashes(tmp_path: Path) -> None:
    runs = [written(tmp_path / f"run-{n}", start(), *training(1)) for n in range(10)]
    drawn = figures(compare_runs(runs), "samples")[0]["data"]
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in drawn}) == 10
