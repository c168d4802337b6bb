"""Trials as runs, in real processes: their results, and failures."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from clew import Dataset, Run
from clew.core.config import to_yaml
from clew.errors import ConfigError
from clew.jobs.lease import Lease
from clew.settings import Settings, load_settings
from clew.tuning.api import local_executor, tune
from clew.tuning.executor import Executor
from clew.tuning.resource_slots import trial_slots
from clew.tuning.snapshot import TrialSummary
from clew.tuning.study import Study
from tests.tuning import LR, template, tune_here

CLEW = str(Path(sys.executable).parent / "clew")
pytestmark = pytest.mark.timeout(180)


def run(settings: Settings, path: Path) -> Study:
    return tune_here(settings, path)


def only(study: Study) -> TrialSummary:
    (trial,) = study.trials()
    return trial


def attempts(study: Study) -> int:
    return len([path for path in study.folder.jobs.iterdir() if path.is_dir()])


def test_a_trial_is_a_run_with_its_values(flat: Dataset, tmp_path: Path) -> None:
    names = {"train.optimizer.lr": {"log": [1e-3, 1e-1]}, "wide": {"choice": [3, 5]}}
    study = run(template(flat, tune={"space": names, "objective": "val/near", "direction": "maximize"}), tmp_path / "s")
    assert study.count()["complete"] == 3
    for each in study.trials():
        trained = Run.open(study.folder.trials / each.name)
        data = trained.config().data
        assert (data["train"]["optimizer"]["lr"], data["wide"]) == tuple(each.settings.values())
        assert data["train"]["best"] == {"metric": "near", "direction": "maximize"}
        validated = [record["metrics"]["near"] for record in trained.records(kind="validation")]
        assert each.values == (max(validated),)
        assert each.reports == dict(enumerate(validated, start=1))
        assert each.seconds > 0 and each.cpu > 0
        assert "tune" not in data
    for leftover in (study.folder.leases, study.folder.owners, study.folder.coordinators):
        assert not list(leftover.iterdir())


def test_an_impossible_combination_fails_only_its_trial(flat: Dataset, tmp_path: Path) -> None:
    names = {"wide": {"choice": [3, 4]}, "after": {"choice": [98, 99]}, "fault": {"choice": ["none", "impossible"]}}
    study = run(template(flat, tune={"space": names, "trials": 8, "sampler": "grid"}), tmp_path / "s")
    reasons = {json.dumps(each.settings): each.reason for each in study.trials() if each.state == "failed"}
    assert len(reasons) == 5 and study.count()["complete"] == 3
    assert sum("wide 3 and after 99 do not go together" in reason for reason in reasons.values()) == 2
    assert sum("there can be no such model" in reason for reason in reasons.values()) == 3


@pytest.mark.parametrize(("fault", "ranks"), [("kill", 1), ("hang", 1), ("kill", 2)])
def test_a_trial_that_crashes_or_hangs_resumes_from_its_checkpoint(
    flat: Dataset, tmp_path: Path, fault: str, ranks: int
) -> None:
    settings = template(
        flat,
        tune={"trials": 1, "lease_seconds": 5, "ranks": ranks},
        fault=fault,
        once=str(tmp_path / "once"),
        after=5,
        rank=ranks - 1,
        pause=0.05,
    )
    study = run(settings, tmp_path / "s")
    trial, trained = only(study), Run(study.folder.trials / "trial-0000")
    assert (trial.state, trial.attempts, attempts(study)) == ("complete", 2, 2)
    assert len(list(trained.records(kind="resume"))) == 1
    assert [record["epoch"] for record in trained.history() if record["kind"] == "validation"] == [0, 1, 2]
    assert trained.state == "finished" and len(trained.streams()) == ranks


@pytest.mark.parametrize(
    ("fault", "message", "tries"),
    [
        ("nan", "loss is nan", 1),
        ("raise", "boom on purpose", 1),
        ("full", "larger than allowed", 2),
        ("kill", "given up after 2", 2),
    ],
)
def test_a_failing_trial_has_its_reason(flat: Dataset, tmp_path: Path, fault: str, message: str, tries: int) -> None:
    study = run(template(flat, tune={"trials": 1, "retries": 1}, fault=fault, after=1), tmp_path / "s")
    trial = only(study)
    assert (trial.state, attempts(study)) == ("failed", tries)
    assert message in trial.reason.lower()


@pytest.mark.long
def test_a_prune_reaches_every_rank_at_the_same_step(flat: Dataset, tmp_path: Path) -> None:
    names = {"pause": {"choice": [0.0, 0.02]}, "train.optimizer.lr": {"choice": [0.05, 1e-6], "when": {}}}
    tuned = {
        "space": names,
        "trials": 4,
        "ranks": 2,
        "parallel": 1,
        "sampler": "grid",
        "pruner": {"name": "median", "startup": 1},
    }
    study = run(template(flat, tune=tuned, train={"epochs": 40}), tmp_path / "s")
    pruned = [each for each in study.trials() if each.state == "pruned"]
    assert pruned
    for each in pruned:
        trained = Run(study.folder.trials / each.name)
        steps = {(trained.last("step", stream) or {})["step"] for stream in trained.streams()}
        assert len(trained.streams()) == 2 and len(steps) == 1
        assert trained.state == "stopped" and max(each.reports) < 40
        assert each.reason.startswith("pruned:")


@pytest.mark.slow  # its thread would outlive a test that `make test-quick` skips
def test_a_stopped_trial_is_not_counted_as_failed(flat: Dataset, tmp_path: Path) -> None:
    """A trial that is stopped from outside continues, even without retries."""
    settings = template(flat, tune={"trials": 1, "retries": 0}, pause=0.1)
    stopped = threading.Event()

    def stop() -> None:
        trained = Run(tmp_path / "s" / "trials" / "trial-0000")
        until(lambda: trained.last("step") is not None)
        os.kill((trained.last("start") or {})["pid"], signal.SIGTERM)
        stopped.set()

    thread = threading.Thread(target=stop)
    thread.start()
    study = run(settings, tmp_path / "s")
    thread.join()
    assert stopped.is_set() and (only(study).state, attempts(study)) == ("complete", 2)


def slow(flat: Dataset, path: Path, *, pause: float = 0.05, **tuned: Any) -> Path:
    """Settings of a study whose trials take a while."""
    settings = template(flat, tune={"parallel": 2, **tuned}, pause=pause)
    path.write_text(to_yaml(settings.data))
    return path


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    words = [CLEW, "tune", "run", *map(str, arguments), "--oversubscribe"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def until(true: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end and not true() and (process is None or process.poll() is None):
        time.sleep(0.02)


def ended(path: Path) -> int:
    """Trials of a study that have ended, without opening it."""
    journal = path / "journal.log"
    return journal.read_text().count('"op_code":6') if journal.exists() else 0


def test_the_lease_of_a_job_that_was_never_started_is_replaced(flat: Dataset, tmp_path: Path) -> None:
    """A coordinator was killed between the lease of a trial and its job."""
    settings = template(flat, tune={"trials": 1})

    def executor(study: Study) -> Executor:
        study.folder.leases.mkdir(exist_ok=True)
        (study.folder.leases / "trial-0000.a1").touch()
        return local_executor(settings, study, oversubscribe=True)

    study = tune(settings, tmp_path / "s", executor=executor)
    assert only(study).state == "complete" and not list(study.folder.leases.iterdir())


def test_a_trial_whose_earlier_attempt_still_writes_is_repeated(
    flat: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that a killed coordinator had started makes the folder of the run just before the next attempt does."""
    settings, grant = template(flat, tune={"trials": 1}), Lease.grant

    def grant_too_early(lease: Lease) -> None:
        grant(lease)
        if lease.path.name == "trial-0000.a1":
            (tmp_path / "s" / "trials" / "trial-0000").mkdir(parents=True)
            (tmp_path / "s" / "trials" / "trial-0000" / "left").touch()

    monkeypatch.setattr(Lease, "grant", grant_too_early)
    study = tune(settings, tmp_path / "s", executor=lambda study: local_executor(settings, study, oversubscribe=True))
    trial = only(study)
    assert (trial.state, trial.attempts) == ("complete", 2)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_study_killed_ten_times_ends_with_exactly_the_requested_trials(flat: Dataset, tmp_path: Path) -> None:
    """A coordinator is killed after its start, or with running trials; some of them survive, some end with it."""
    path, rng = tmp_path / "s", random.Random(3)
    yaml = slow(flat, tmp_path / "my.yaml", pause=0.1, trials=16, lease_seconds=20)
    first: list[str | Path] = [yaml, "--output", path]
    for kill in range(10):
        started = len(list(path.glob("jobs/*/job.json")))
        process = start(*(first if not (path / "config.yaml").exists() else ["--resume", path]))
        if kill % 2:
            until(lambda before=started: len(list(path.glob("jobs/*/job.json"))) > before, process)  # type: ignore[misc]
        else:
            until(lambda: any(path.glob("coordinators/*")), process)
        time.sleep(rng.uniform(0.0, 0.8))
        assert process.poll() is None, process.communicate()[0]
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate()
        for member in family if kill % 3 == 0 else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
    assert ended(path) < 16
    process = start("--resume", path)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output
    study = Study.open(path)
    assert study.count() == {"waiting": 0, "running": 0, "complete": 16, "pruned": 0, "failed": 0}
    assert len(list(study.folder.trials.glob("trial-*"))) == 16
    for each in study.trials():
        trained = Run(study.folder.trials / each.name)
        epochs = [record["epoch"] for record in trained.history() if record["kind"] == "validation"]
        assert trained.state == "finished" and epochs == [0, 1, 2]
    assert not list(study.folder.owners.iterdir())


def test_a_second_coordinator_is_refused_or_joins(flat: Dataset, tmp_path: Path) -> None:
    yaml, path = slow(flat, tmp_path / "my.yaml", pause=0.4, trials=5, parallel=1), tmp_path / "s"
    first = start(yaml, "--output", path)
    until(lambda: any((path / "trials").glob("trial-*")), first)
    second = start("--resume", path)
    output = second.communicate(timeout=60)[0]
    assert second.returncode == 2 and f"pid {first.pid} on" in output and "--join" in output
    helper = start("--resume", path, "--join")
    words = [each.communicate(timeout=90)[0] for each in (helper, first)]
    assert (helper.returncode, first.returncode) == (0, 0), words
    study = Study.open(path)
    assert study.count()["complete"] == 5
    jobs = [json.loads(file.read_text()) for file in study.folder.jobs.glob("*/job.json")]
    assert len(jobs) == 5


def test_a_signal_stops_all_trials_ready_to_resume(flat: Dataset, tmp_path: Path) -> None:
    yaml, path = slow(flat, tmp_path / "my.yaml", trials=3), tmp_path / "s"
    process = start(yaml, "--output", path)
    until(lambda: any(Run(each).last("step") for each in (path / "trials").glob("trial-*")), process)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 75 and "--resume" in output, output
    states = {Run(each).state for each in (path / "trials").glob("trial-*")}
    assert "stopped" in states and states <= {"created", "stopped", "finished"}  # one may have been about to start
    again = start("--resume", path)
    again.communicate(timeout=90)
    assert again.returncode == 0
    study = Study.open(path)
    assert study.count()["complete"] == 3


@pytest.mark.long
def test_under_mpiexec_rank_0_coordinates_and_the_others_form_blocks(flat: Dataset, tmp_path: Path) -> None:
    mpiexec = shutil.which("mpiexec") or shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    if mpiexec is None:
        pytest.skip("no mpiexec")
    yaml, path = slow(flat, tmp_path / "my.yaml", trials=2, ranks=2), tmp_path / "s"
    words = [mpiexec, "-n", "3", CLEW, "tune", "run", str(yaml), "--output", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    study = Study.open(path)
    assert study.count()["complete"] == 2
    assert [len(Run(each).streams()) for each in sorted(study.folder.trials.glob("trial-*"))] == [2, 2]
    two_ranks = [mpiexec, "-n", "2", CLEW, "tune", "run", str(yaml), "--output", str(tmp_path / "few")]
    refused = subprocess.run(two_ranks, capture_output=True, text=True, timeout=60)
    assert "one to coordinate and 2 per trial" in refused.stderr


def test_slots_are_distributed_and_not_oversubscribed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clew.tuning.resource_slots.available_cores", lambda: [0, 1, 2, 3, 8, 9, 10, 11])
    monkeypatch.setattr("clew.tuning.resource_slots.device_count", lambda: 0)
    assert [slot.cores for slot in trial_slots(2, 3)] == [(0, 1, 2, 3), (8, 9, 10, 11)]
    assert len(trial_slots(None, 2)) == 4
    with pytest.raises(ConfigError, match="4 trials of 3 ranks do not fit on 8 cores"):
        trial_slots(4, 3)
    assert len(trial_slots(4, 3, oversubscribe=True)) == 4
    monkeypatch.setattr("clew.tuning.resource_slots.device_count", lambda: 4)
    assert [slot.devices for slot in trial_slots(None, 2)] == [(0, 1), (2, 3)]
    with pytest.raises(ConfigError, match="8 cores and 4 devices"):
        trial_slots(4, 2)


def test_a_study_whose_settings_do_not_fit_is_not_started(flat: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key 'wyde'"):
        run(template(flat, tune={"space": {"wyde": {"choice": [1]}}}), tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_an_objective_that_is_not_a_metric_ends_the_study_with_its_first_trial(flat: Dataset, tmp_path: Path) -> None:
    message = "tune.objective 'val/nera' is not a metric of these runs; did you mean 'val/near'?"
    with pytest.raises(ConfigError) as caught:
        run(template(flat, tune={"objective": "val/nera", "direction": "maximize", "parallel": 1}), tmp_path / "s")
    assert str(caught.value) == message
    assert only(Study.open(tmp_path / "s")).reason == message


def test_a_trial_gives_the_same_bits_as_a_separate_training(dataset: Dataset, tmp_path: Path) -> None:
    """The third in a process that did two others, with different rates and batch sizes."""
    settings = {"train.dataset": str(dataset.path), "train.epochs": 2, "train.threads": 1, "model.hidden": 8}
    tuned = {"space": {**LR, "train.batch_size": {"choice": [16, 32]}}, "trials": 3, "parallel": 1, "sampler": "random"}
    study = run(load_settings("tracking").changed({**settings, "tune": tuned}, "here"), tmp_path / "s")
    trials = [Run(study.folder.trials / f"trial-000{number}") for number in range(3)]
    assert len({(trial.last("start") or {})["pid"] for trial in trials}) == 1
    separate_run = tmp_path / "own"
    yaml = study.folder.jobs / "trial-0002.yaml"
    done = subprocess.run(
        [CLEW, "train", str(yaml), "--output", str(separate_run)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    for name in ("last", "best"):
        assert trials[2].checkpoint(name).read_bytes() == Run(separate_run).checkpoint(name).read_bytes()
    alone, reused = (
        [each["metrics"] for each in trial.records(kind="validation")] for trial in (Run(separate_run), trials[2])
    )
    assert alone == reused
