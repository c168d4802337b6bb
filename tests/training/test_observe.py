"""Validation in a background process, search of the batch size, timelines and usage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import clew
from clew import Dataset, Run
from clew.errors import RunError, StoppedError
from clew.runs import timeline as trace
from clew.runs.summary import summarize
from clew.training.api import resume
from tests.training import losses, recipe, validations, weights

PLAIN: dict[str, Any] = {"epochs": 3, "threads": 1, "batch_size": 32, "optimizer": {"lr": 0.02}, "log_every": 1}


def train(data: Dataset, output: Path, **settings: Any) -> Run:
    return clew.train(recipe("line"), data, output=output, **{**PLAIN, **settings})


@pytest.mark.parametrize("workers", [1, 2])
def test_background_validation_gives_the_same_results(flat: Dataset, tmp_path: Path, workers: int) -> None:
    shared = train(flat, tmp_path / "shared", workers=workers)
    background = train(flat, tmp_path / "background", workers=workers, validation="background")
    assert losses(background) == losses(shared)
    for background_metrics, shared_metrics in zip(validations(background), validations(shared), strict=True):
        assert {k: v for k, v in background_metrics.items() if v is not None} == pytest.approx(
            {k: v for k, v in shared_metrics.items() if v is not None}, rel=1e-6
        )
    assert [r["step"] for r in background.records(kind="validation")] == [
        r["step"] for r in shared.records(kind="validation")
    ]
    for name in ("last", "best"):
        assert all(torch.equal(t, weights(shared, name)[key]) for key, t in weights(background, name).items())
    assert not list(background.checkpoints.glob("pending*"))


def test_the_best_weights_are_those_that_were_validated(flat: Dataset, tmp_path: Path) -> None:
    run = train(flat, tmp_path / "run", epochs=8, optimizer={"lr": 0.6}, validation="background", ema=0.5)
    best = min(run.records(kind="validation"), key=lambda record: record["metrics"]["loss"])
    again = clew.evaluate(run, split="val", weights="best")
    assert again.metrics["loss"].value == pytest.approx(best["metrics"]["loss"], rel=1e-6)
    assert best["step"] < run.last("validation")["step"], "a run whose best is not its last, or this shows little"  # type: ignore[index]


def test_a_run_with_background_validation_is_resumed(flat: Dataset, tmp_path: Path) -> None:
    settings = {
        "epochs": 6,
        "validation": "background",
        "checkpoint_minutes": 1e-5,
        "best": {"metric": "near", "direction": "maximize"},
    }
    whole = train(flat, tmp_path / "whole", **settings)
    with pytest.raises(StoppedError):
        train(flat, tmp_path / "run", time_limit_minutes=0.0008, **settings)
    run = resume(tmp_path / "run", time_limit_minutes=10)
    assert [v["near"] for v in validations(run)][-1] == validations(whole)[-1]["near"]
    for name in ("last", "best"):
        resumed_weights, whole_weights = load_file(run.checkpoint(name)), load_file(whole.checkpoint(name))
        assert all(torch.equal(tensor, whole_weights[key]) for key, tensor in resumed_weights.items())
    epochs = [record["epoch"] for record in run.history() if record["kind"] == "validation"]
    assert sorted(set(epochs)) == list(range(6))


def test_a_failing_validation_fails_the_run_with_its_message(dataset: Dataset, flat: Dataset, tmp_path: Path) -> None:
    with pytest.raises(clew.errors.ClewError, match=r"wrong on purpose"):
        clew.train(recipe("line", fault="validation"), flat, output=tmp_path / "run", validation="background", **PLAIN)
    assert Run.open(tmp_path / "run").state == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("how", ["auto", "largest"])
def test_a_batch_size_is_found_and_written_down(how: str, workers: int, flat: Dataset, tmp_path: Path) -> None:
    run = train(flat, tmp_path / "run", batch_size=how, workers=workers, epochs=1)
    record = run.last("batch_size")
    assert record is not None and record["seconds"] < 60
    sizes = [int(size) for size in record["tried"]]
    assert sizes == [2**k for k in range(len(sizes))] and len(sizes) >= 4
    chosen = run.config().data["train"]["batch_size"]
    assert chosen == record["chosen"] <= flat.splits["train"]
    assert len(losses(run)) == -(-flat.splits["train"] // chosen)
    if how == "largest":
        assert chosen == min(sizes[-1] * workers, flat.splits["train"])
    again = clew.train(recipe("line"), flat, output=tmp_path / "again", **{**PLAIN, "batch_size": chosen, "epochs": 1})
    np.testing.assert_allclose([s["loss"] for s in losses(again)], [s["loss"] for s in losses(run)], rtol=1e-5)


def test_a_timeline_has_every_phase_of_every_rank_on_one_clock(flat: Dataset, tmp_path: Path) -> None:
    start = time.time_ns()
    run = train(flat, tmp_path / "run", workers=2)
    spans = trace.traces(run)
    assert set(spans) == {0, 1}
    steps = 3 * -(-flat.splits["train"] // 32)
    for rank_spans in spans.values():
        names = {trace.PHASES[phase] for phase in set(rank_spans["phase"].tolist())}
        assert names >= {"load", "forward", "backward", "communicate", "optimise", "validate"}
        assert int((rank_spans["phase"] == trace.PHASES.index("forward")).sum()) == steps
        assert start <= int(rank_spans["start"].min()) and int(rank_spans["start"].max()) <= time.time_ns()
        shares = trace.phase_shares(rank_spans)
        assert sum(shares.values()) == pytest.approx(1.0)
    count = trace.write_chrome(run, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == count == sum(len(each) for each in spans.values())


def test_a_trace_cut_short_by_a_crash_is_read_up_to_there(flat: Dataset, tmp_path: Path) -> None:
    run = train(flat, tmp_path / "run", epochs=1)
    path = run.trace_folder / "rank-0.trace"
    whole = len(trace.read_trace(path))
    path.write_bytes(path.read_bytes()[:-5])
    assert len(trace.read_trace(path)) == whole - 1
    path.write_bytes(b"something else")
    with pytest.raises(RunError, match="not a trace"):
        trace.traces(run)


def test_no_trace_says_so(flat: Dataset, tmp_path: Path) -> None:
    run = train(flat, tmp_path / "run", epochs=1, trace=False, monitor_seconds=None)
    assert not run.trace_folder.exists() and run.streams() == ["rank-0"]
    with pytest.raises(RunError, match=r"no trace; it was trained with train\.trace=false"):
        trace.traces(run)


def test_usage_is_sampled_on_every_rank(flat: Dataset, tmp_path: Path) -> None:
    run = train(flat, tmp_path / "run", workers=2, epochs=20, monitor_seconds=0.05)
    for rank in range(2):
        usage_records = list(run.records(f"usage-{rank}", "usage"))
        assert usage_records
        assert all(record["memory"] > 50e6 for record in usage_records)
        assert any(record["cpu"] > 0.01 for record in usage_records)


@pytest.mark.long
def test_a_killed_run_leaves_a_trace_that_can_be_read(dataset: Dataset, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "clew"), "train", "tracking", "--dataset", str(dataset.path)]
    more = ["--epochs", "500", "--set", "model.hidden=8", "--set", "train.threads=1", "--output", str(tmp_path / "run")]
    process = subprocess.Popen([*command, *more], stdout=subprocess.DEVNULL)
    run = Run(tmp_path / "run")
    while not (run.trace_folder.exists() and sum(1 for _ in run.records(kind="step")) > 100):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(trace.traces(run)[0]) > 100


@pytest.mark.filterwarnings("ignore")
def test_other_tools_receive_losses_and_metrics(flat: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    mlflow = pytest.importorskip("mlflow")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = train(flat, tmp_path / "run", writers=["tensorboard", "mlflow"])
    tensorboard = EventAccumulator(str(run.path / "tensorboard"))
    tensorboard.Reload()
    assert [each.value for each in tensorboard.Scalars("train/loss")] == pytest.approx([s["loss"] for s in losses(run)])
    assert len(tensorboard.Scalars("val/near")) == 3
    client = mlflow.MlflowClient((tmp_path / "mlruns").resolve().as_uri())
    (mlflow_run,) = client.search_runs([client.get_experiment_by_name("clew").experiment_id])
    assert mlflow_run.data.metrics["val/loss"] == pytest.approx(validations(run)[-1]["loss"])
    assert mlflow_run.data.params["train.epochs"] == "3" and mlflow_run.info.status == "FINISHED"


def test_the_trace_command_prints_shares_and_writes_a_timeline(flat: Dataset, tmp_path: Path) -> None:
    run = train(flat, tmp_path / "run", workers=2)
    done = subprocess.run(
        [str(Path(sys.executable).parent / "clew"), "trace", str(run.path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1" in done.stdout and "communicate" in done.stdout
    assert json.loads((run.path / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize(("keep", "message"), [("compressed", "compressed "), ("disk", "from disk at ")])
def test_the_way_samples_are_loaded_is_reported(keep: str, message: str, flat: Dataset, tmp_path: Path) -> None:
    run = train(flat, tmp_path / "run", loading={"keep": keep})
    assert summarize(run).loading.startswith(message) and summarize(run).loading.endswith(" GB/s")
