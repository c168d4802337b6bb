"""Comparing strategies: when a target is reached, how failures count, and a small study on real hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from clew import Dataset, Run
from clew.bench.strategies import page
from clew.bench.strategies import study as strategies
from clew.bench.strategies.results import UNLIMITED, StrategyGoal, StrategyRun, StrategyStudy
from clew.bench.strategies.study import StrategyStudyConfig
from clew.errors import ConfigError, DataError, RunError
from tests.bench.test_hosts import namespaces
from tests.cli import SCRIPT, clew
from tests.runs import end, plan, start, training, written
from tests.training.conftest import flat_dataset

pytestmark = pytest.mark.timeout(240)

LINE = str(Path(__file__).parents[1] / "training" / "recipes" / "line.py")
NONE = {"recipe": "r", "workers": 2, "cores": 2, "when": "now"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return flat_dataset(tmp_path_factory.mktemp("flat"))


def note(**facts: Any) -> dict[str, Any]:
    return {"kind": "note", "message": "a worker joined", **facts}


def test_a_target_is_reached_in_the_direction_of_the_metric() -> None:
    assert StrategyGoal("f1", "maximize", 0.9).reached(0.9) and not StrategyGoal("f1", "maximize", 0.9).reached(0.89)
    assert StrategyGoal("loss", "minimize", 0.9).reached(0.9) and not StrategyGoal("loss", "minimize", 0.9).reached(
        0.91
    )
    assert not StrategyGoal("loss", "minimize", None).reached(0.1) and not StrategyGoal(
        "loss", "minimize", 1.0
    ).reached(None)


def test_the_default_target_is_a_little_below_the_reference() -> None:
    reference = StrategyRun("allreduce", "unlimited", "r", curve=[(1.0, 0.9), (2.0, 0.8)])
    assert strategies.with_value(StrategyGoal("f1", "maximize"), reference).value == 0.784
    assert strategies.with_value(StrategyGoal("loss", "minimize"), reference).value == 0.816
    with pytest.raises(ConfigError, match="choose another with --metric"):
        strategies.with_value(StrategyGoal("f2", "maximize"), StrategyRun("allreduce", "unlimited", "r"))


def test_time_counts_from_when_all_workers_were_there(tmp_path: Path) -> None:
    joined = [note(joined=1), note(), note(joined=2), note(joined=3)]
    written(tmp_path / "runs" / "a", start(), plan(), *joined, *training(), end())
    trial = StrategyRun("gem", "1Gbit", "runs/a")
    strategies.read_run(trial, tmp_path, StrategyGoal("f1", "maximize", 0.6), 2)
    # the second worker's note is record 4; the second validation, the first with f1 above 0.6, is record 16
    assert trial.seconds == pytest.approx(1.2) and trial.epochs == 3
    assert trial.samples == 8 * 64 and trial.best == pytest.approx(0.75)


def test_time_counts_from_the_plan_if_no_worker_joins(tmp_path: Path) -> None:
    written(tmp_path / "runs" / "a", start(), plan(), *training())
    trial = StrategyRun("allreduce", "1Gbit", "runs/a")
    strategies.read_run(trial, tmp_path, StrategyGoal("f1", "maximize", 0.9), 2)
    assert trial.seconds is None and [round(at, 3) for at, _ in trial.curve] == [0.5, 1.1, 1.7]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bandwidths": ["10GB"]}, "expected a number and a unit"),
        ({"strategies": ["downpuor"]}, "strategies"),
        ({"workers": 1}, "workers"),
    ],
)
def test_settings_are_checked_before_anything_begins(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=message):
        StrategyStudyConfig(recipe=LINE, **wrong)


def test_a_missing_dataset_and_a_folder_that_is_taken_are_found_first(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        strategies.compare_strategies(
            StrategyStudyConfig(recipe=LINE, dataset=str(tmp_path / "no")), tmp_path / "study"
        )
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="--output"):
        strategies.compare_strategies(StrategyStudyConfig(recipe=LINE, dataset=str(data.path)), tmp_path)


def test_a_delay_is_in_milliseconds(data: Dataset, tmp_path: Path) -> None:
    for text in ("5", "5s", "-1ms", "fast"):
        outcome = clew("bench", "strategies", LINE, "--dataset", data.path, "--delay", text, "--output", tmp_path / "x")
        assert outcome.code == 2 and f"--delay {text}: expected milliseconds such as 1ms" in outcome.err


def test_the_median_counts_and_failures_count_as_slow() -> None:
    took: dict[str, list[float | None]] = {
        "allreduce": [30.0, 1.0, 2.0],
        "gem": [1.0, None, None],
        "easgd": [1.5, None, 1.0],
    }
    trials = [
        StrategyRun(name, "1Gbit", "r", seed, each) for name, all in took.items() for seed, each in enumerate(all)
    ]
    study = StrategyStudy(StrategyGoal("f1", "maximize", 0.9), NONE, None, trials, {"1Gbit": 9.1e8})
    assert [study.seconds(name, "1Gbit") for name in study.strategies] == [2.0, None, 1.5]
    assert study.fastest("1Gbit") == "easgd" and study.fastest("2Gbit") == ""
    drawn = page.over_bandwidth(study)["data"][0]
    assert (drawn["y"], drawn["error_y"]["array"], drawn["error_y"]["arrayminus"]) == ([2.0], [28.0], [1.0])


def test_the_page_shows_the_fastest_and_those_that_missed_the_target(tmp_path: Path) -> None:
    first = StrategyRun("allreduce", "1Gbit", "runs/a", seconds=2.0, curve=[(1.0, 0.5), (2.0, 0.9)], best=0.9)
    others = [
        StrategyRun("gem", "1Gbit", "runs/b", curve=[(1.0, 0.5)], best=0.5),
        StrategyRun("easgd", "1Gbit", "c", message="<boom>"),
        StrategyRun("<b onload=x>", "1Gbit", "<script>", message="from another file"),
    ]
    study = StrategyStudy(StrategyGoal("f1", "maximize", 0.9), NONE, None, [first, *others], {"1Gbit": 9.1e8})
    text = page.write(study, tmp_path / "study.html").read_text()
    assert study.fastest("1Gbit") == "allreduce" and "<b>2.0 s</b>" in text
    assert "<b onload" not in text and "<script>" not in text.partition("<main")[2].partition("</main")[0]
    assert "not reached <small>best 0.5</small>" in text and "easgd at 1Gbit: &lt;boom&gt;" in text
    assert [trace["name"] for trace in page.metric_curves(study, "1Gbit")["data"]] == ["allreduce", "gem", "target"]


@pytest.mark.long
def test_a_study_on_real_hosts(can_host: None, data: Dataset, tmp_path: Path) -> None:
    output = tmp_path / "study"
    words = ("--strategy", "allreduce,downpour", "--bandwidth", "200Mbit", "--target", "1.0", "--epochs", "2")
    small = (
        "--delay",
        "3ms",
        "--set",
        "train.batch_size=20",
        "--set",
        "train.optimizer.lr=0.05",
        "--set",
        "train.monitor_seconds=null",
    )
    outcome = clew("bench", "strategies", LINE, "--dataset", data.path, *words, *small, "--output", output)
    assert outcome.code == 0, outcome.err
    assert "seconds to loss <= 1" in outcome.out and "Mbit/s" in outcome.out and "there and back" in outcome.out
    result = json.loads((output / "study.json").read_text())
    assert [trial["message"] for trial in result["trials"]] == ["", ""]
    assert all(trial["seconds"] > 0 and trial["best"] <= 1 for trial in result["trials"])
    assert result["conditions"]["round_trip"]["200Mbit"] >= 0.006
    assert "ms there and back" in (output / "study.html").read_text()
    assert result["lines"]["200Mbit"] < 250e6 and result["conditions"]["samples"] == data.splits["train"]
    last = Run.open(output / "runs/downpour-200Mbit-0").last("workers")
    assert last is not None and {worker["host"] for worker in last["workers"].values()} == {"host-1", "host-2"}
    assert (output / "study.html").stat().st_size > 1e6
    assert not namespaces()


@pytest.mark.long
def test_a_strategy_that_fails_does_not_end_the_study(can_host: None, data: Dataset, tmp_path: Path) -> None:
    options = {"strategies": ("allreduce", "gem"), "bandwidths": (UNLIMITED,), "target": 100.0, "epochs": 1}
    config = StrategyStudyConfig(recipe=LINE, dataset=str(data.path), settings=("train.ema=0.9",), **options)
    study = strategies.compare_strategies(config, tmp_path / "study")
    assert [trial.seconds is None for trial in study.trials] == [False, True]
    assert "ema cannot be used with gem" in study.trials[1].message
    assert study.fastest(UNLIMITED) == "allreduce" and (tmp_path / "study" / "study.html").exists()


def test_ctrl_c_leaves_no_host_behind(can_host: None, data: Dataset, tmp_path: Path) -> None:
    command = [SCRIPT, "bench", "strategies", LINE, "--dataset", data.path, "--output", tmp_path / "study"]
    with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "study" / "logs").exists():
            assert process.poll() is None
            time.sleep(0.05)
        assert namespaces(process.pid)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    assert (process.returncode, errors.strip()) == (130, "clew: interrupted")
    assert not namespaces(process.pid)


def test_without_the_tools_the_command_says_so(data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    outcome = clew("bench", "strategies", LINE, "--dataset", data.path, "--output", tmp_path / "study")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "install iproute2" in outcome.err
