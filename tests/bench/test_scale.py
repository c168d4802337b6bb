"""Scaling: shares from a merged timeline, predictions with their error, and a study that is interrupted and resumed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from clew import Dataset
from clew.bench import compare
from clew.bench.scaling import measurement, page
from clew.bench.scaling import study as scale
from clew.bench.scaling.expectation import LINKS, LinkConfig, bytes_per_step, expect
from clew.bench.scaling.forecast import forecast
from clew.bench.scaling.measurement import ScalingRun
from clew.bench.scaling.results import ScalingResult
from clew.bench.scaling.study import ScaleConfig
from clew.errors import ConfigError, RunError
from clew.runs.timeline import PHASES, SPAN
from tests.cli import SCRIPT, clew, done
from tests.training.conftest import flat_dataset

pytestmark = pytest.mark.timeout(240)
LINE = str(Path(__file__).parents[1] / "training" / "recipes" / "line.py")


def spans(*rows: tuple[str, int, int, int]) -> NDArray[Any]:
    """Phase, step, start and length in microseconds."""
    return np.array([(PHASES.index(p), 0, step, 1000 * at, 10 * length) for p, step, at, length in rows], dtype=SPAN)


def trained(workers: int, seconds: float, talk: float = 0.0, **more: Any) -> ScalingRun:
    """Twelve records of a hundred events with a little noise."""
    rng = np.random.default_rng(workers)
    noise = 1 + 0.01 * rng.normal(size=12)
    blocks = [(100, 100 * seconds * n, 0.0, 100 * talk * n) for n in noise.tolist()]
    return ScalingRun("allreduce", workers, f"runs/{workers}", blocks=blocks, **more)


def study(*trainings: ScalingRun, **config: Any) -> ScalingResult:
    conditions = {"data": "d", "where": "this machine", "cores": 2, "threads": 1, "when": "now", "cpu": "c"}
    plain = {"recipe": "r", "weak": False, "batch_size": None, "settings": []}
    return ScalingResult({**plain, **config}, conditions, list(trainings))


def test_waiting_is_what_passes_until_the_last_rank_has_come() -> None:
    fast = spans(("forward", 0, 0, 40), ("communicate", 0, 40, 60))
    slow = spans(("forward", 0, 0, 80), ("communicate", 0, 80, 20))
    shares = measurement.time_shares({0: fast, 1: slow})
    assert shares["compute"] == pytest.approx(0.6) and shares["wait"] == pytest.approx(0.2)
    assert shares["communicate"] == pytest.approx(0.2) and sum(shares.values()) == pytest.approx(1)


def test_validation_and_checkpoints_are_no_training() -> None:
    rank = spans(("load", 0, 0, 20), ("forward", 0, 20, 80), ("validate", 0, 100, 300), ("checkpoint", 0, 400, 100))
    shares = measurement.time_shares({0: rank})
    assert shares["io"] == pytest.approx(0.2) and shares["compute"] == pytest.approx(0.8)


def test_a_prediction_finds_the_law_that_the_times_follow() -> None:
    def law(p: int) -> tuple[float, float]:
        return 1e-3 + 9e-3 / p + 1e-4 * np.log2(p), 1e-4 * np.log2(p)

    predicted = forecast([trained(p, *law(p)) for p in (1, 2, 4, 8)], [16, 64], weak=False)
    assert predicted.form == "tree" and predicted.fitted_on == [1, 2, 4, 8] and not predicted.note
    assert predicted.serial[1] <= 0.1 <= predicted.serial[2]
    for place, p in enumerate((16, 64)):
        true = 1e-2 / law(p)[0]
        assert predicted.speedup_low[place] < true < predicted.speedup_high[place]
        assert predicted.speedup[place] == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize("form", ["ring", "tree", "linear"])
@pytest.mark.parametrize("weak", [False, True])
def test_a_prediction_finds_how_communication_grows(form: str, weak: bool) -> None:
    """With more work for more workers, one communication serves more events."""
    growths: dict[str, Any] = {"ring": lambda p: (p - 1) / p, "tree": np.log2, "linear": lambda p: p - 1}
    grows = growths[form]

    def law(p: int) -> tuple[float, float]:
        computing = (8e-3 + 4e-4 * np.log2(p)) / p if weak else 1e-3 + 8e-3 / p
        talk = 5e-4 * grows(p) / (p if weak else 1)
        return computing + talk, talk

    runs = [trained(p, *law(p)) for p in (2, 4, 8, 16)]
    predicted = forecast(runs, [64, 32], weak=weak)
    assert (predicted.form, predicted.workers, predicted.fitted_on) == (form, [32, 64], [2, 4, 8, 16])
    assert predicted.events_per_second == pytest.approx([1 / law(p)[0] for p in (32, 64)], rel=0.05)
    assert predicted.speedup == pytest.approx([2 * law(2)[0] / law(p)[0] for p in (32, 64)], rel=0.05)
    for low, middle, high in zip(predicted.low, predicted.events_per_second, predicted.high, strict=True):
        assert 0.8 * middle < low <= middle <= high < 1.2 * middle and low < high
    assert predicted.serial == (0.0, 0.0, 0.0) if weak else predicted.serial[0] == pytest.approx(1 / 9, rel=0.3)


def test_the_band_is_that_of_the_trainings_and_of_the_seed() -> None:
    pair = [trained(1, 1e-2), trained(1, 1.4e-2, seed=1), trained(2, 6e-3), trained(2, 6e-3, seed=1)]
    apart, alike = forecast(pair, [4], weak=False), forecast([pair[0], *pair[2:]], [4], weak=False)
    assert apart.high[0] - apart.low[0] > 3 * (alike.high[0] - alike.low[0])
    assert forecast(pair, [4], weak=False) == apart != forecast(pair, [4], weak=False, seed=1)
    failed = ScalingRun("allreduce", 4, "runs/4", message="failed")
    assert forecast([*pair, failed], [4], weak=False) == apart


def test_one_size_above_one_leaves_the_form_open_and_the_band_wide() -> None:
    pair = [trained(1, 1e-2), trained(2, 6e-3, 1e-3)]
    three_sizes = forecast([*pair, trained(4, 4e-3, 1.5e-3)], [32], weak=False)
    open_ = forecast(pair, [32], weak=False)
    assert "not known" in open_.note and open_.form == "" and three_sizes.form
    assert open_.high[0] - open_.low[0] > 3 * (three_sizes.high[0] - three_sizes.low[0])


def test_oversubscribed_sizes_predict_nothing() -> None:
    predicted = forecast([trained(1, 1e-2), trained(2, 9e-3, oversubscribed=True)], [8], weak=False)
    assert not predicted.workers and "two are needed" in predicted.note


def test_the_expectation_follows_from_counted_bytes_and_assumed_links() -> None:
    links = {"slow": LinkConfig(gigabytes_per_second=0.5, microseconds=0)}
    runs = [trained(1, 1e-2, batch_size=100, parameters=10**8), trained(2, 6e-3, 1e-3, batch_size=100)]
    expected = expect(runs, [4], links, weak=False)
    assert [size.workers for size in expected.sizes] == [1, 2, 4] and expected.parameters == 10**8
    assert [size.bytes_per_step for size in expected.sizes] == [0, 4e8, 6e8]  # a ring: 2 (p - 1) / p of 400 MB
    one, two, four = expected.sizes
    assert one.efficiency["slow"] == (1.0, 1.0) and one.measured_efficiency == 1.0
    assert two.compute_seconds == pytest.approx(0.5, rel=0.02) and two.communication_seconds["slow"] == 0.8
    assert two.efficiency["slow"] == pytest.approx((0.5 / 1.3, 0.5 / 0.8), rel=0.02)
    assert two.measured_efficiency == pytest.approx(10 / 12, rel=0.02) and four.measured_efficiency is None
    assert two.measured_communication_seconds == pytest.approx(0.1, rel=0.02)
    batch_of_each = expect(runs, [4], links, weak=True).sizes[2]
    assert batch_of_each.compute_seconds == pytest.approx(1.0, rel=0.02)


def test_a_master_sends_all_values_to_every_worker() -> None:
    run = ScalingRun("easgd", 2, "", processes=4, parameters=1000, value_bytes=2, exchange_interval=4)
    assert bytes_per_step(run, workers=8) == 2000 * 8 / 4 / 2
    assert "not known" in expect([replace(trained(1, 1.0), strategy="pipeline")], [], {}, weak=False).note


def test_the_page_marks_what_is_oversubscribed_and_what_is_only_predicted(tmp_path: Path) -> None:
    result = study(trained(1, 1e-2), trained(2, 6e-3, 1e-3), trained(4, 6e-3, 2e-3, oversubscribed=True))
    result.forecasts["allreduce"] = forecast(result.trainings, [8], weak=False)
    text = page.write(result, tmp_path / "scale.html").read_text()
    assert "Oversubscribed at 4 workers" in text and "Prediction, not measured" in text
    drawn = page.speedup(result)["data"]
    line = next(trace for trace in drawn if trace["name"] == "allreduce, measured")
    assert line["marker"]["symbol"] == ["circle", "circle", "circle-open"]
    assert any("prediction (90% band)" in trace["name"] for trace in drawn)
    assert [row["oversubscribed"] for row in result.rows()] == [False, False, True]


def test_a_study_is_read_as_it_was_saved(tmp_path: Path) -> None:
    result = study(trained(1, 1e-2, batch_size=64), trained(2, 6e-3, 1e-3, batch_size=64))
    result.expectations["allreduce"] = expect(result.trainings, [8], LINKS, weak=False)
    result.save(tmp_path / "scale.json")
    loaded = ScalingResult.load(tmp_path / "scale.json")
    assert loaded.rows() == result.rows()
    assert page.write(loaded, tmp_path / "a.html").read_text() == page.write(result, tmp_path / "b.html").read_text()
    assert "NVLink 4" in (tmp_path / "a.html").read_text()
    (tmp_path / "other.json").write_text('{"kind": "workload", "format": 1}')
    with pytest.raises(ConfigError, match="not a result of clew bench scale"):
        ScalingResult.load(tmp_path / "other.json")


def test_two_studies_are_compared_with_significance(tmp_path: Path) -> None:
    for name, seconds in (("a", 1e-2), ("b", 5e-3)):
        runs = [trained(1, seconds * (1 + 0.01 * seed), seed=seed) for seed in range(3)]
        study(*runs).save(tmp_path / f"{name}.json")
    row = compare.compare(tmp_path / "a.json", tmp_path / "b.json").rows[0]
    assert row.ratio == pytest.approx(2, rel=0.02) and row.p is not None and row.p < 1e-3
    assert "significant" in done("bench", "compare", tmp_path / "a.json", tmp_path / "b.json")


def test_unlike_things_are_refused_in_one_line(tmp_path: Path) -> None:
    study(trained(1, 1e-2)).save(tmp_path / "a.json")
    study(trained(1, 1e-2), weak=True).save(tmp_path / "b.json")
    (tmp_path / "c.json").write_text("{}")
    for other, message in (("b.json", "weak is False"), ("c.json", "neither a scale.json"), ("d.json", "No such file")):
        outcome = clew("bench", "compare", tmp_path / "a.json", tmp_path / other)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1) and message in outcome.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "1,two"), "whole numbers separated by commas"),
        (("--workers", "0"), "workers"),
        (("--strategy", "allredcue"), "did you mean 'allreduce'?"),
        (("--limit", "soon"), "--limit"),
        (("--link", "fast=quick"), "write NAME=GB/S or NAME=GB/S:MICROSECONDS"),
        (("--on", "nowhere"), "no site 'nowhere'"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], message: str, data: Dataset, tmp_path: Path) -> None:
    outcome = clew("bench", "scale", LINE, "--dataset", data.path, "--output", tmp_path / "s", *words)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1) and message in outcome.err


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return flat_dataset(tmp_path_factory.mktemp("flat"))


def test_an_interrupted_study_resumes(data: Dataset, tmp_path: Path) -> None:
    output = tmp_path / "scaling"
    words = ["bench", "scale", LINE, "--dataset", data.path, "--workers", "1,2", "--epochs", "2", "--output", output]
    words += ["--set", "train.batch_size=20", "--set", "train.monitor_seconds=null"]
    with subprocess.Popen([str(SCRIPT), *map(str, words)], stderr=subprocess.PIPE, text=True) as process:
        while not (output / "jobs" / "allreduce-2-0").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    assert (process.returncode, errors.strip()) == (130, "clew: interrupted")
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(output) in " ".join(p.info["cmdline"] or ())]
    assert not _of(output)
    first = (output / "runs/allreduce-1-0/records/rank-0.jsonl").stat().st_mtime_ns
    outcome = clew(*map(str, words))
    assert outcome.code == 0, outcome.err
    assert (output / "runs/allreduce-1-0/records/rank-0.jsonl").stat().st_mtime_ns == first
    _look_at(json.loads((output / "scale.json").read_text()))
    with pytest.raises(RunError, match="different epochs"):
        scale.measure_scaling(ScaleConfig(recipe=LINE, dataset=str(data.path), epochs=3), output)


def _of(output: Path) -> list[psutil.Process]:
    """Processes that write below a folder: jobs have the command line of the process that forked them."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if Path(f"/proc/{process.pid}/fd/1").readlink().is_relative_to(output):
                processes.append(process)
    return processes


def _look_at(result: dict[str, Any]) -> None:
    one, two = result["sizes"]
    assert (one["workers"], two["workers"]) == (1, 2) and one["speedup"] == 1
    assert two["oversubscribed"] == (len(os.sched_getaffinity(0)) < 2)
    for row in (one, two):
        assert row["events_per_second"] > 0 and sum(row["shares"].values()) == pytest.approx(1, abs=0.01)
        assert row["filling_seconds"] > 0
    assert one["shares"]["communicate"] == 0 and two["shares"]["communicate"] + two["shares"]["wait"] > 0
    losses = [each["validations"][-1][2] for each in result["trainings"]]
    assert [one["loss"], two["loss"]] == losses
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert result["trainings"][0]["validations"][-1][1] == 2 * result["conditions"]["events"]["train"]
