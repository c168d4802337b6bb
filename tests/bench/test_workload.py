"""The workload: its files, reproducible bits, and insufficient memory."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import clew as package
from clew.bench.workload import hepscore
from clew.bench.workload.config import PADDED, PUBLISHED, PUBLISHED_BAND, WorkloadConfig
from clew.bench.workload.environment import container_digest
from clew.bench.workload.event_data import EventRequest, make_event_data
from clew.bench.workload.fixed_events import CHECKSUMS, events_checksum, write_fixed_events
from clew.bench.workload.node import NodeScan, SettingRun
from clew.bench.workload.results import WorkloadResult, fit_message, key_figures, summary
from clew.bench.workload.runner import run_workload
from clew.bench.workload.training_run import EpochMeasurement, WorkloadRun, read_run
from clew.errors import RunError, WorkerError
from clew.runs import Run
from clew.settings import load_settings
from tests.cli import clew

pytestmark = pytest.mark.timeout(240)
SMALL = str(Path(__file__).parent / "recipes" / "small.py")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def result(*attempts: WorkloadRun, **config: Any) -> WorkloadResult:
    values = {"recipe": SMALL, "name": "small", **config}
    machine = {"cpu": "c"}
    return WorkloadResult(
        values, machine, {"code": "c", "data": "d", "config": "x", "container": None}, {}, list(attempts)
    )


def attempt(seed: int = 0, copy: int = 0, accuracy: float = 0.9) -> WorkloadRun:
    metrics: dict[str, float | None] = {"accuracy": accuracy, "accuracy_padded": accuracy + 0.05}
    epochs = [
        EpochMeasurement(n, s, 100, 0.1 * s, 1.0, metrics, 10.0 * (n + 1)) for n, s in enumerate((50.0, 10.0, 30.0))
    ]
    return WorkloadRun(seed, copy, "r", "finished", epochs, energy=60.0)


def test_the_first_epoch_is_left_out_and_copies_add_up() -> None:
    workload = result(attempt(), attempt(copy=1), copies=2, epochs=3)
    assert workload.speeds == [pytest.approx(10.0)]
    document = summary(workload, WorkloadConfig(**workload.config))
    assert (
        document["report"]["wl-scores"] == {"training": 10.0}
        and document["report"]["wl-stats"]["training"]["count"] == 2
    )
    extra = document["report"]["training"]
    assert (extra["mean_throughput"], extra["mean_epoch_time"], extra["num_epochs"]) == (5.0, 20.0, 3)
    assert extra["first_epoch_left_out"] and extra["throughput_per_epoch"] == [2.0, 10.0, pytest.approx(3.3333)]


def test_a_result_that_is_not_complete_says_so() -> None:
    workload = result(attempt(), epochs=5)
    assert summary(workload, WorkloadConfig(**workload.config))["report"]["log"] == "unfinished: 3 of 5 epochs"
    workload.status = "finished"  # fewer steps were requested
    assert summary(workload, WorkloadConfig(**workload.config))["report"]["log"] == "ok"


def test_jobs_end_with_a_killed_starter(tmp_path: Path) -> None:
    script = f"""
import subprocess, sys, time
from clew.bench.measured_jobs import killed_with_parent
from clew.jobs.launchers.launcher import LaunchedJob
job = subprocess.Popen(["sleep", "100"], start_new_session=True)
print(job.pid, flush=True)
with killed_with_parent([LaunchedJob("warm", f"{{job.pid}}:0", {str(tmp_path)!r})]):
    time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        job = psutil.Process(int(starter.stdout.readline()))
        time.sleep(0.5)
        starter.kill()
    ended, _ = psutil.wait_procs([job], timeout=20)
    assert ended == [job] or job.status() == psutil.STATUS_ZOMBIE


def test_seeds_show_a_spread_and_a_target_its_time() -> None:
    figures = key_figures(result(attempt(0, accuracy=0.9), attempt(1, accuracy=0.8), target=0.85, seeds=2))
    assert figures["accuracy"]["accuracy"]["mean"] == pytest.approx(0.85)
    assert figures["accuracy"]["accuracy"]["deviation"] == pytest.approx(0.0707, abs=1e-3)
    assert figures["seconds_to_target"] == 10.0 and figures["joules_per_event"] == pytest.approx(0.2)
    assert figures["data_wait_share"] == pytest.approx(0.1) and figures["band"] is None


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, None),
        ({"data": ()}, "synthetic"),
        ({"data": ("x.root",)}, "Delphes files are named"),
        ({"batch_size": 8}, "--batch-size 16"),
        ({"settings": ("model.layers=2",)}, "settings"),
    ],
)
def test_the_published_accuracy_counts_for_the_published_data_alone(changed: dict[str, Any], why: str | None) -> None:
    config = WorkloadConfig(**{**PUBLISHED, "data": ("x.pkl.bz2",), **changed})
    assert config.band == (None if why else (PADDED, PUBLISHED_BAND))
    assert (why is None and config.comparable is None) or (why or "") in (config.comparable or "")


def test_a_run_leaves_what_hepscore_reads_and_two_copies_have_the_same_bits(tmp_path: Path) -> None:
    output = tmp_path / "out"
    words = ("--events", "40", "--epochs", "2", "--batch-size", "10", "--copies", "2", "--threads", "1")
    more = ("--deterministic", "--inference", "--recipe", SMALL, "--output", output)
    outcome = clew("bench", "particleflow", *words, *more)
    assert outcome.code == 0, outcome.err
    assert (
        "first epoch not counted" in outcome.out
        and "not comparable with the published one (events are synthetic" in " ".join(outcome.out.split())
    )
    saved = hepscore.read_summary(output / "small_summary.json")
    assert saved.report.log == "ok" and saved.report.wl_scores.keys() == {"training", "inference"}
    assert saved.run_info.copies == 2 and saved.report.wl_stats["training"].count == 2
    report = json.loads((output / "report.json").read_text())
    first, second = report["runs"]
    assert len(first["losses"]) == 8 and first["losses"] == second["losses"]
    assert all(len(report["hashes"][name]) == 64 for name in ("data", "config", "code"))
    assert report["data"] | {"checksum": ""} == {"synthetic": True, "events": {"train": 40, "val": 4}, "checksum": ""}
    assert Run.open(output / first["run"]).config().data["train"]["deterministic"] is True
    assert (output / "report.html").stat().st_size > 1e6


def test_out_of_memory_is_a_result_with_the_largest_batch_that_fits(tmp_path: Path) -> None:
    config = WorkloadConfig(recipe=SMALL, name="small", events=40, batch_size=4, settings=("fits=2",), threads=1)
    outcome = run_workload(config, tmp_path / "out")
    assert outcome.status == "out of memory" and outcome.fits is not None
    assert (outcome.fits["largest_that_fits"], outcome.fits["exact"]) == (2, True)
    log = hepscore.read_summary(tmp_path / "out" / "small_summary.json").report.log
    assert log == "out of memory at batch 4; the largest that fits is 2"
    assert "the largest that fits is 2" in (tmp_path / "out" / "report.html").read_text()
    with pytest.raises(RunError, match="holds a result already"):
        run_workload(config, tmp_path / "out")


@pytest.mark.parametrize(
    ("largest", "smallest", "message"),
    [
        (5, 6, "the largest that fits is 5"),
        (320, 322, "320 fits, 322 does not"),
        (None, 1, "not even 1 fits"),
        (None, 4, "4 does not fit either"),
    ],
)
def test_only_the_largest_batch_is_called_the_largest(largest: int | None, smallest: int, message: str) -> None:
    fits = {"largest_that_fits": largest, "smallest_that_does_not": smallest, "exact": smallest - (largest or 0) <= 1}
    assert fit_message(fits) == message


def test_another_failure_ends_the_command_and_is_on_disk(tmp_path: Path) -> None:
    config = WorkloadConfig(recipe=SMALL, name="small", events=40, threads=1, settings=("train.best.metric=nothing",))
    with pytest.raises(WorkerError, match="nothing"):
        run_workload(config, tmp_path / "out")
    assert hepscore.read_summary(tmp_path / "out" / "small_summary.json").report.log.startswith("failed: ")


def test_deterministic_training_uses_reproducible_algorithms_and_puts_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[bool] = []
    recipe = package.recipe.resolve(SMALL)
    event_data = make_event_data(recipe, EventRequest(40, 0), tmp_path)
    model = type(recipe).model

    def watched(self: Any) -> Any:
        states.append(torch.are_deterministic_algorithms_enabled())
        return model(self)

    monkeypatch.setattr(type(recipe), "model", watched)
    for deterministic in (True, False):
        package.train(
            recipe, event_data.dataset, epochs=1, deterministic=deterministic, output=tmp_path / str(deterministic)
        )
    assert states == [True, False] and not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--precision", "float8"), "precision"),
        (("--batch-scan", "1,x"), "whole numbers"),
        (("--target", "1.5"), "target"),
        (("--gpus", "64", "--copies", "2"), "--gpus 64 for each of 2 copies: torch finds"),
        (("--set", "model.wdith=3"), "wdith"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    outcome = clew("bench", "particleflow", "--recipe", SMALL, "--output", tmp_path / "o", *words)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1) and message in outcome.err


def test_the_entry_of_the_container_needs_its_folder(tmp_path: Path) -> None:
    outcome = clew("bench", "hepix", "-W", "--results", tmp_path / "none")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1) and "-B DIR:/results" in outcome.err


def test_the_entry_of_the_container_passes_everything_on(tmp_path: Path) -> None:
    extra = f"--epochs 1 --batch-size 8 --recipe {SMALL} --set train.monitor_seconds=null"
    words = ("--copies", "1", "--threads", "1", "--events", "16", "--extra-args", extra)
    outcome = clew("bench", "hepix", "-W", *words, "--results", tmp_path)
    assert outcome.code == 0, outcome.err
    saved = hepscore.read_summary(tmp_path / "small_summary.json")
    extra_figures = (saved.report.model_extra or {})["training"]
    assert (saved.run_info.threads_per_copy, saved.run_info.events_per_thread) == (1, 16)
    assert (extra_figures["batch_size_per_device"], extra_figures["num_epochs"]) == (8, 1)


def test_an_image_has_fixed_events_with_a_checksum(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    made = clew("bench", "events", "--recipe", SMALL, "--events", "24", "--output", folder)
    checksum = events_checksum(folder)
    assert made.code == 0 and checksum in made.out.replace("\n", "")
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    extra = f"--epochs 1 --batch-size 8 --recipe {SMALL} --set train.monitor_seconds=null"
    words = ("--events", "16", "--fixed-events", folder, "--results", tmp_path, "--extra-args", extra)
    outcome = clew("bench", "hepix", "-W", *words)
    assert outcome.code == 0, outcome.err
    app = hepscore.read_summary(tmp_path / "small_summary.json").app
    report = json.loads((tmp_path / "report.json").read_text())
    assert app.bmkdata_checksum == report["hashes"]["fixed_events"] == checksum
    assert report["data"]["synthetic"] and report["data"]["events"] == {"train": 16, "val": 4}
    assert set(report["environment"]["hardware"]["cpu"]) == {"min_mhz", "max_mhz", "governor", "power_limits_w"}
    assert report["clocks"] or psutil.cpu_freq() is None


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ("tamper", ("--events", "8"), "it differs from its checksum in SHA256SUMS"),
        ("remove", ("--events", "8"), "no SHA256SUMS in it; make the folder with `clew bench events`"),
        ("none", ("--events", "800"), "holds 12 events, but 800 training"),
        ("none", ("--data", "x.h5"), "not from both"),
    ],
)
def test_fixed_events_that_do_not_fit_are_refused(
    change: str, words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "events"
    write_fixed_events(load_settings(SMALL).recipe, 12, 0, folder)
    if change == "tamper":
        file = next(folder.glob("*.h5"))
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    elif change == "remove":
        (folder / CHECKSUMS).unlink()
    options = ("--recipe", SMALL, "--fixed-events", folder, "--output", tmp_path / "o")
    outcome = clew("bench", "particleflow", *options, *words)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1) and message in outcome.err


def test_the_digest_of_the_image_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_IMAGE_DIGEST", "sha256:abc")
    assert container_digest() == "sha256:abc"
    (tmp_path / "clew.sif").write_bytes(b"image")
    monkeypatch.setenv("APPTAINER_CONTAINER", str(tmp_path / "clew.sif"))
    assert container_digest() == f"sha256:{hashlib.sha256(b'image').hexdigest()}"


def test_the_best_setting_of_a_node_and_its_cost(tmp_path: Path) -> None:
    node = NodeScan(
        [
            SettingRun(2, 1, 4, "float32", 10.0),
            SettingRun(1, 2, 4, "float32", 20.0),
            SettingRun(1, 2, 64, "bf16", message="m"),
        ]
    )
    assert node.best.threads == 1 and node.cost is None
    node.price_per_hour = 7.2
    assert node.cost == pytest.approx(100.0)
    with pytest.raises(WorkerError, match="no setting ran: m"):
        _ = NodeScan([node.trials[2]]).best


@pytest.mark.long
def test_a_node_is_scanned(tmp_path: Path) -> None:
    words = ("--events", "1", "--time", "12s", "--price-per-hour", "1", "--recipe", SMALL, "--output", tmp_path / "n")
    outcome = clew("bench", "node", *words, "--gpus", "0")
    assert outcome.code == 0, outcome.err
    result = json.loads((tmp_path / "n" / "node.json").read_text())
    speeds = [trial["events_per_second"] for trial in result["trials"]]
    assert len(speeds) + len(result["untried"]) >= 2 and result["best"]["events_per_second"] == max(speeds) > 0
    assert any(
        "bf16" in precision for precision in [*result["untried"], *(trial["precision"] for trial in result["trials"])]
    )
    assert "run it: clew bench particleflow" in outcome.out and "a million events cost" in outcome.out


def test_the_events_of_an_epoch_are_its_own(tmp_path: Path) -> None:
    """Records count the samples since the start of the training."""
    run = Run.create(tmp_path / "run", config={}, environment={})
    with run.writer("rank-0") as writer:
        writer.write("start", schema=1, host="h", pid=1, rank=0, ranks=1)
        writer.write("plan", device="cpu", parameters=3, samples=50, steps=5, epochs=3)
        for step, (epoch, samples) in enumerate([(0, 32), (0, 50), (1, 82), (1, 100), (2, 150)], start=1):
            facts = {"epoch": epoch, "step": step, "samples": samples, "loss": {"loss": 1.0}, "lr": 0.1}
            writer.write("step", **facts, seconds=0.5, wait=0.1, communicate=0.0)
        for epoch, step in ((0, 2), (1, 4), (2, 5)):
            writer.write("validation", epoch=epoch, step=step, seconds=0.1, metrics={"loss": 1.0})
    measured = WorkloadRun(seed=0, copy=0, run=str(run.path))
    read_run(measured, run)
    assert [(epoch.events, epoch.seconds) for epoch in measured.epochs] == [(50, 1.0), (50, 1.0), (50, 0.5)]
    assert measured.events_per_second == pytest.approx(100 / 1.5)
