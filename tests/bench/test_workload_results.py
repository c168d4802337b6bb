"""The key figures of a workload and its summary, from measurements made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from clew.bench.workload.config import PUBLISHED, WorkloadConfig
from clew.bench.workload.results import WorkloadResult, key_figures, summary
from clew.bench.workload.training_run import EpochMeasurement, WorkloadRun

HASHES = {"code": "code", "data": "data", "config": "x", "container": None}
SYNTHETIC = {"events": 32, "epochs": 2, "batch_size": 4}
"""The settings for which a band of accuracies is known."""


def trained(seed: int = 0, copy: int = 0, seconds: float = 10.0, accuracy: float = 0.9, **more: Any) -> WorkloadRun:
    metrics: dict[str, float | None] = {"accuracy": accuracy, "accuracy_padded": accuracy + 0.05}
    early: dict[str, float | None] = {"accuracy": 0.5}
    epochs = [
        EpochMeasurement(0, 40.0, 100, 1.0, 1.0, early, 45.0),
        EpochMeasurement(1, seconds, 100, 0.25 * seconds, 1.0, metrics, 60.0),
    ]
    return WorkloadRun(seed, copy, "r", "finished", epochs, **more)


def result(*runs: WorkloadRun, **config: Any) -> WorkloadResult:
    plain = {"gpus": 0, "threads": 3, **SYNTHETIC, **config}
    return WorkloadResult(plain, {}, dict(HASHES), {"padding_share": 0.3}, list(runs))


def report(made: WorkloadResult) -> dict[str, Any]:
    return summary(made, WorkloadConfig(**made.config))


def test_key_figures_of_copies_and_seeds() -> None:
    made = result(
        trained(0, 0, 10.0, 0.8, memory=5.0, energy=400.0),
        trained(0, 1, 20.0, 0.8, memory=7.0, device_memory=3.0),
        trained(1, 0, 5.0, 0.9, energy=1000.0, device_tensors=2.0),
        WorkloadRun(2, 0, "r", message="failed"),
    )
    figures = key_figures(made)
    assert made.seeds == [0, 1] and made.speeds == [15.0, 20.0] and [run.copy for run in made.copies(0)] == [0, 1]
    assert figures["events_per_second"] == 17.5
    assert figures["epoch_seconds"] == [[40.0, 10.0], [40.0, 20.0], [40.0, 5.0]] and figures["first_epoch_left_out"]
    accuracy = figures["accuracy"]["accuracy"]
    assert (accuracy["n"], accuracy["min"], accuracy["max"]) == (2, 0.8, 0.9), "copies of a seed are the same model"
    assert figures["accuracy"]["accuracy_padded"]["mean"] == pytest.approx(0.9)
    assert figures["joules_per_event"] == pytest.approx((400 / 200 + 1000 / 200) / 2)
    assert (figures["peak_memory_bytes"], figures["peak_device_memory_bytes"]) == (7.0, 3.0)
    assert figures["peak_device_tensors_bytes"] == 2.0 and figures["data_wait_share"] == 0.25
    assert figures["padding_share"] == 0.3 and made.derived() == {"figures": figures}


@pytest.mark.parametrize(("accuracy", "passed"), [(0.74, False), (0.75, True), (0.93, True), (0.94, False)])
def test_a_run_passes_within_the_band_of_its_settings(accuracy: float, passed: bool) -> None:
    figures = key_figures(result(trained(accuracy=accuracy)))
    assert figures["band"] == {"metric": "accuracy", "low": 0.75, "high": 0.93} and figures["passed"] is passed
    assert figures["target"] == 0.75 and figures["seconds_to_target"] == (60.0 if accuracy >= 0.75 else None)


@pytest.mark.parametrize(("accuracy", "passed"), [(0.904, False), (0.905, True), (0.911, False)])
def test_the_published_band_is_that_of_the_padded_accuracy(accuracy: float, passed: bool) -> None:
    figures = key_figures(result(trained(accuracy=accuracy), data=("x.pkl",), **PUBLISHED))
    assert figures["band"] == {"metric": "accuracy_padded", "low": 0.955, "high": 0.960}
    assert figures["passed"] is passed and figures["comparable_with_published_accuracy"]
    assert figures["target"] is None and figures["seconds_to_target"] is None, "the target is one without padding"
    assert figures["comparable"].startswith("Accuracy with padding counted: comparable with the published 0.9576")


def test_without_a_band_there_is_no_verdict() -> None:
    figures = key_figures(result(trained(), events=33))
    assert figures["band"] is None and figures["passed"] is None and figures["target"] is None
    assert figures["comparable"].startswith("Accuracy: not comparable with the published one (events are synthetic")
    assert not figures["comparable_with_published_accuracy"]
    assert key_figures(result(trained(), events=33, target=0.4))["seconds_to_target"] == 45.0


def test_a_result_without_runs_has_no_figures() -> None:
    figures = key_figures(result())
    names = ("events_per_second", "passed", "seconds_to_target", "joules_per_event", "peak_memory_bytes")
    assert [figures[name] for name in (*names, "data_wait_share")] == [None] * 6
    assert not figures["first_epoch_left_out"]
    document = report(result())["report"]
    assert (document["wl-scores"], document["training"], document["log"]) == (
        {"training": 0.0}, {}, "no epoch is finished yet",
    )  # fmt: skip
    assert document["wl-stats"]["training"]["count"] == 0


def test_the_summary_has_the_figures_of_the_published_workload() -> None:
    made = result(trained(0, 0, 8.0), trained(0, 1, 4.0), trained(1, 0, 4.0), copies=2, batch_size=16, gpus=0)
    document = report(made)
    assert document["run_info"] == {
        "copies": 2,
        "threads_per_copy": 3,
        "events_per_thread": 11,  # of 32 events
        "events_per_copy": 32,
        "devices_per_copy": 0,
        "precision": "float32",
        "seed": 0,
    }
    assert document["report"]["wl-scores"] == {"training": (12.5 + 25 + 25) / 2}
    stats = document["report"]["wl-stats"]["training"]
    assert (stats["count"], stats["min"], stats["max"]) == (2, 12.5, 25.0)
    extra = document["report"]["training"]
    expected = {
        "mean_throughput": 12.5,
        "mean_epoch_time": 8.0,
        "num_epochs": 2,
        "epoch_times": [40.0, 8.0],
        "train_time": 48.0,
        "GPU": "",
        "train_set_size": 100,
        "batch_size_per_device": 16,
        "batch_size_total": 16,
        "steps_per_epoch": 7,
        "events_per_epoch": 100,
        "throughput_per_epoch": [2.5, 12.5],
        "first_epoch_left_out": True,
        "throughput_per_seed": [37.5, 25.0],
    }
    assert {name: extra[name] for name in expected} == expected and extra["CPU"]


def test_a_batch_is_of_all_devices_of_a_copy() -> None:
    made = result(trained(), batch_size=16)
    extra = summary(made, WorkloadConfig(**{**made.config, "gpus": 2}))["report"]["training"]
    assert (extra["batch_size_per_device"], extra["batch_size_total"], extra["steps_per_epoch"]) == (16, 32, 4)


def test_one_epoch_is_not_left_out() -> None:
    run = trained()
    run.epochs = run.epochs[:1]
    made = result(run)
    assert (
        not key_figures(made)["first_epoch_left_out"] and not report(made)["report"]["training"]["first_epoch_left_out"]
    )
    assert report(made)["report"]["training"]["mean_epoch_time"] == 40.0


def test_the_speed_of_inference_is_a_score_of_its_own() -> None:
    made = result(trained())
    made.inference = {"events_per_second": 123.45678}
    document = report(made)["report"]
    assert document["wl-scores"] == {"training": 10.0, "inference": 123.4568}
    assert document["wl-stats"]["inference"]["median"] == 123.4568


def test_checksums_are_those_of_fixed_events_if_there_are_any() -> None:
    made = result(trained())
    app = report(made)["app"]
    assert (app["bmk_checksum"], app["bmkdata_checksum"], app["container_digest"]) == ("code", "data", "")
    made.hashes |= {"fixed_events": "fixed", "container": "sha256:1"}
    assert (report(made)["app"]["bmkdata_checksum"], report(made)["app"]["container_digest"]) == ("fixed", "sha256:1")


@pytest.mark.parametrize(
    ("runs", "status", "log"),
    [
        ([trained()], "running", "ok"),
        ([trained(), trained(copy=1)], "running", "ok"),
        ([trained(), WorkloadRun(1, 0, "r", message="killed")], "running", "failed: killed"),
        ([], "finished", "no epoch is finished yet"),
    ],
)
def test_the_log_says_how_it_ended(runs: list[WorkloadRun], status: str, log: str) -> None:
    made = result(*runs, epochs=2, copies=max(1, len(runs)))
    made.status = status
    assert report(made)["report"]["log"] == log


def test_an_unfinished_workload_counts_its_epochs() -> None:
    made = result(trained(), epochs=2, copies=2, seeds=3)
    assert report(made)["report"]["log"] == "unfinished: 2 of 12 epochs"
    made.fits = {"requested": 64, "largest_that_fits": 8, "smallest_that_does_not": 9, "exact": True}
    assert report(made)["report"]["log"] == "out of memory at batch 64; the largest that fits is 8"
