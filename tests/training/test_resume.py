"""A run that was stopped or killed resumes with the same result."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

import clew
from clew import Dataset, Run
from clew.core.files import sha256
from clew.errors import RunError, StoppedError
from clew.runs.summary import summarize
from clew.settings import load_settings
from clew.training.api import resume

CLEW = str(Path(sys.executable).parent / "clew")
SMALL = ["model.hidden=8", "train.epochs=3", "train.batch_size=16", "train.threads=1", "train.log_every=1"]
QUICK = {"checkpoint_minutes": 1e-5}
"""A state after every step."""


def train(dataset: Dataset, output: Path, **settings: Any) -> Run:
    small = load_settings("tracking", SMALL)
    return clew.train(small.recipe, dataset, config=small.train, output=output, **settings)


def weights(run: Run) -> str:
    return sha256(run.checkpoint("last"))


@pytest.fixture(scope="module")
def whole(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    """Uninterrupted runs on one and on two workers."""
    folder = tmp_path_factory.mktemp("whole")
    return {workers: train(dataset, folder / str(workers), workers=workers) for workers in (1, 2)}


def command(dataset: Dataset, output: Path, workers: int) -> list[str]:
    options = [part for setting in [*SMALL, "train.checkpoint_minutes=1e-5"] for part in ("--set", setting)]
    where = ["--dataset", str(dataset.path), "--output", str(output), "--workers", str(workers)]
    return [CLEW, "train", "tracking", *where, *options]


def steps_done(run: Path) -> int:
    records = run / "records" / "rank-0.jsonl"
    return records.read_text().count('"kind": "step"') if records.exists() else 0


def kill(process: subprocess.Popen[bytes]) -> None:
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before
            each.kill()
    process.wait()


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("workers", "kills"), [(1, 7), (2, 3)])
def test_killed_at_random_steps_it_ends_with_the_same_weights(
    whole: dict[int, Run], dataset: Dataset, tmp_path: Path, workers: int, kills: int
) -> None:
    rng, steps = random.Random(workers), whole[workers].last("step") or {}
    stops = sorted(rng.sample(range(1, steps["step"] - 1), kills))
    output, start = tmp_path / "run", command(dataset, tmp_path / "run", workers)
    for stop in stops:
        process = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and (steps_done(output) < stop or not Run(output).states()):
            time.sleep(0.005)
        if process.poll() is None:
            kill(process)
        start = [CLEW, "train", "--resume", str(output)]
    if Run(output).state != "finished":
        subprocess.run(start, check=True, capture_output=True)
    assert weights(Run(output)) == weights(whole[workers])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_stops_it_with_75_and_it_resumes(
    whole: dict[int, Run], dataset: Dataset, tmp_path: Path, number: signal.Signals, workers: int
) -> None:
    output = tmp_path / "run"
    process = subprocess.Popen(command(dataset, output, workers), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while steps_done(output) < 2:
        time.sleep(0.005)
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75
    assert b"clew train --resume" in errors
    assert Run.open(output).state == "stopped"
    resume(output)
    assert weights(Run(output)) == weights(whole[workers])


def test_a_time_limit_stops_it_ready_to_resume(whole: dict[int, Run], dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match="--resume"):
        train(dataset, tmp_path / "run", time_limit_minutes=1e-6)
    rounds = 0
    while Run(tmp_path / "run").state == "stopped" and rounds < 60:
        rounds += 1
        try:
            resume(tmp_path / "run", time_limit_minutes=1e-6)
        except StoppedError:
            continue
    steps = (whole[1].last("step") or {})["step"]
    assert 3 <= rounds <= steps
    assert weights(Run(tmp_path / "run")) == weights(whole[1])


@pytest.mark.timeout(60)
def test_another_number_of_workers_resumes_with_the_same_batches(
    whole: dict[int, Run], dataset: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(StoppedError):
        train(dataset, tmp_path / "run", time_limit_minutes=1e-6)
    run = resume(tmp_path / "run", workers=2, time_limit_minutes=None)
    resumed, other = load_file(run.checkpoint("last")), load_file(whole[1].checkpoint("last"))
    assert all((resumed[name] - other[name]).abs().max() < 1e-5 for name in other)


def test_a_damaged_newest_state_falls_back_to_the_one_before(dataset: Dataset, tmp_path: Path) -> None:
    run = _stopped_after_an_epoch(dataset, tmp_path / "run")
    before, newest = run.states()
    newest.write_bytes(newest.read_bytes()[:1000])
    resume(run)
    record = run.last("resume") or {}
    assert (record["file"], record["damaged"]) == (before.name, [newest.name])
    assert run.state == "finished"


def test_with_no_state_left_it_says_so(dataset: Dataset, tmp_path: Path) -> None:
    run = _stopped_after_an_epoch(dataset, tmp_path / "run")
    for path in run.states():
        path.write_bytes(b"")
    with pytest.raises(RunError, match=r"no checkpoint to resume from \(2 damaged\)"):
        resume(run)


def test_a_state_of_another_model_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    run = _stopped_after_an_epoch(dataset, tmp_path / "run")
    run.config_file.write_text(run.config_file.read_text().replace("hidden: 8", "hidden: 9"))
    with pytest.raises(RunError, match="another model"):
        resume(run)


def test_a_finished_run_has_nothing_to_resume(whole: dict[int, Run]) -> None:
    with pytest.raises(RunError, match="is finished"):
        resume(whole[1])


def test_a_job_that_is_started_again_though_its_run_has_finished_stores_it(
    whole: dict[int, Run], tmp_path: Path
) -> None:
    """As if the signal of a wall time comes at the last moment."""
    store = {"to": str(tmp_path / "models"), "what": ["model"]}
    run = resume(whole[1], again=True, store=store)
    assert run.state == "finished" and list((tmp_path / "models").rglob("clew.json"))


def test_repeated_steps_are_listed_once(whole: dict[int, Run], dataset: Dataset, tmp_path: Path) -> None:
    run = _stopped_after_an_epoch(dataset, tmp_path / "run")
    run.states()[-1].unlink()
    resume(run)
    steps = [record["step"] for record in run.history() if record["kind"] == "step"]
    assert steps == list(range(1, len(steps) + 1))
    assert len(list(run.records(kind="step"))) > len(steps)
    assert summarize(run).epochs_done == 3


def test_only_the_newest_states_stay(dataset: Dataset, tmp_path: Path) -> None:
    run = train(dataset, tmp_path / "run", keep_checkpoints=3, **QUICK)
    assert len(run.states()) == 3


def _stopped_after_an_epoch(dataset: Dataset, output: Path) -> Run:
    """A run of which the first epoch and a step of the second were done."""
    first = train(dataset, output, epochs=1)
    run = Run(first.path)
    run.config_file.write_text(run.config_file.read_text().replace("epochs: 1\n", "epochs: 3\n"))
    records = run.records_folder / "rank-0.jsonl"
    records.write_text(records.read_text().replace('"status": "finished"', '"status": "stopped"'))
    with pytest.raises(StoppedError):
        resume(run, time_limit_minutes=1e-6)
    return run
