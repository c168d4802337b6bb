"""Jobs on real Slurm with `--on SITE`: the usual steps of a user."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from clew import Dataset, Run, Table
from clew.core.config import to_yaml
from tests.cli import clew, done
from tests.sites import long
from tests.sites.cluster import Cluster
from tests.training import RECIPES, weights
from tests.training.conftest import flat_dataset

LINE = str(RECIPES / "line.py")
CREDENTIALS = ("X509_USER_PROXY", "BEARER_TOKEN", "RUCIO_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "KRB5CCNAME")
SMALL = ("--set", "train.threads=1", "--set", "train.batch_size=60", "--set", "train.trace=false")


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return flat_dataset(tmp_path_factory.mktemp("flat"))


def train(flat: Dataset, *words: str, epochs: int = 2) -> tuple[str, ...]:
    return ("train", LINE, "--dataset", str(flat.path), "--epochs", str(epochs), *SMALL, *words)


def hosts(run: Run) -> dict[str, int]:
    """Ranks and their processes, from their streams."""
    return {stream: (run.last("start", stream) or {})["ranks"] for stream in run.streams()}


def until(condition: Callable[[], object], *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, condition
        time.sleep(0.1)


def test_two_nodes_train_together_and_evaluate_follows(site: Cluster, flat: Dataset) -> None:
    output = done(*train(flat, "--workers", "2", "--output", "runs/two", "--on", "here", "--nodes", "2", "--no-follow"))
    assert "watch it: " in output
    last = done("evaluate", "runs/two", "--split", "val", "--on", "here", "--after", "runs/two", "--follow")
    assert "waiting for another job" in last and "finished: runs/two" in last
    two = Run.open("runs/two")
    assert two.state == "finished" and hosts(two) == {"rank-0": 2, "rank-1": 2}
    assert "val" in two.evaluations()
    nodes = json.loads(Path("runs/jobs/two/job.json").read_text())["job"]["id"]
    assert "NodeList=n[1-2]" in site.call("scontrol", "show", "job", nodes)
    done(*train(flat, "--workers", "2", "--output", "runs/home"))
    home = weights(Run.open("runs/home"))
    assert all((tensor == home[name]).all() for name, tensor in weights(two).items())
    assert "finished" in done("site", "jobs")


def test_an_asynchronous_training_has_its_master_on_one_node_and_workers_on_others(
    site: Cluster, flat: Dataset
) -> None:
    words = ("--workers", "2", "--strategy", "downpour", "--output", "runs/async", "--on", "here", "--nodes", "3")
    output = done(*train(flat, *words, "--follow"))
    assert "running on n[1-3]" in output and "epoch   2/2" in output
    assert hosts(Run.open("runs/async")) == {"rank-0": 3, "rank-1": 3, "rank-2": 3}


def test_an_asynchronous_training_goes_over_the_mpi_of_the_site(mpi_site: Cluster, flat: Dataset) -> None:
    words = ("--workers", "2", "--strategy", "downpour", "--set", "train.asynchronous.comm=mpi", "--output", "runs/mpi")
    output = done(*train(flat, *words, "--on", "here", "--nodes", "3", "--follow"))
    assert "running on n[1-3]" in output and "finished: runs/mpi" in output
    assert hosts(Run.open("runs/mpi")) == {"rank-0": 3, "rank-1": 3, "rank-2": 3}


@long
def test_mpi_on_a_site_without_pmi_is_reported(site: Cluster, flat: Dataset) -> None:
    words = ("--workers", "2", "--strategy", "downpour", "--set", "train.asynchronous.comm=mpi", "--output", "runs/mpi")
    outcome = clew(*train(flat, *words, "--on", "here", "--nodes", "3", "--follow"))
    assert outcome.code != 0 and "MPI connects 1 of 3 ranks" in outcome.err


@long
def test_the_doctor_says_which_mpi_and_pmi_the_nodes_have(mpi_site: Cluster) -> None:
    report = json.loads(done("doctor", "--on", "here", "--nodes", "2", "--json"))
    mpi_findings = [each for host in report["hosts"][1:] for each in host["findings"] if each["name"] == "mpi"]
    assert {each["verdict"] for each in mpi_findings} == {"good"}
    assert all(
        "of the site: Open MPI" in each["message"] and "2 of 2 ranks connected by PMIx" in each["message"]
        for each in mpi_findings
    )


def test_a_requeued_run_ends_with_the_same_result(site: Cluster, flat: Dataset) -> None:
    slow = ("--set", "slow=0.03", "--workers", "2", "--output", "runs/parts", "--on", "here", "--nodes", "2")
    done(*train(flat, *slow, "--no-follow", epochs=40))
    parts = Run(Path("runs/parts"))
    until(lambda: parts.last("validation") is not None)
    job = json.loads(Path("runs/jobs/parts/job.json").read_text())["job"]["id"]
    site.call("scancel", "--signal=USR1", job)  # as Slurm does before the end of the wall time
    assert "finished" in done("follow", "runs/parts")
    assert start_count(parts) == 1
    done(*train(flat, "--workers", "2", "--output", "runs/whole", epochs=40))
    whole = weights(Run.open("runs/whole"))
    assert all((tensor == whole[name]).all() for name, tensor in weights(parts).items())


def start_count(run: Run) -> int:
    """How often the run was started."""
    return sum(1 for _ in run.records(kind="resume"))


@pytest.fixture
def endless(site: Cluster, flat: Dataset) -> Iterator[Run]:
    """A run on two nodes that does not end."""
    done(
        *train(
            flat,
            "--set",
            "slow=0.05",
            "--workers",
            "2",
            "--output",
            "runs/on",
            "--on",
            "here",
            "--nodes",
            "2",
            epochs=9999,
        )
    )
    run = Run(Path("runs/on"))
    until(lambda: run.config_file.exists() and run.last("validation"))
    yield run
    site.call("scancel", "--user=root")
    until(lambda: not site.call("squeue", "-h").strip())


def test_a_cancelled_job_is_named_and_can_be_resumed(site: Cluster, endless: Run) -> None:
    site.call("scancel", "--user=root")
    outcome = clew("follow", "runs/on")
    assert outcome.code == 1 and "is gone: cancelled at the scheduler" in outcome.err
    assert endless.state == "stopped" and endless.states()


@long
def test_a_job_is_stopped_ready_to_resume_and_stays_out_of_the_queue(site: Cluster, endless: Run) -> None:
    assert "stopped" in done("stop", "runs/on")
    assert endless.state == "stopped" and endless.states()
    assert not site.call("squeue", "-h").strip()


@long
def test_leaving_a_job_does_not_end_it(site: Cluster, endless: Run) -> None:
    command = [sys.executable, "-m", "clew", "follow", "runs/on"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert watching.stdout is not None
    until(lambda: "running on" in watching.stdout.readline())  # type: ignore[union-attr]
    watching.send_signal(signal.SIGINT)
    output = watching.communicate(timeout=30)[0]
    assert watching.returncode == 0 and " continues." in output and "follow" in output
    assert endless.state == "running"


def test_a_rejected_submission_is_one_line(site: Cluster, flat: Dataset) -> None:
    for words, message in {
        ("--wall-time", "2h"): "7200 s of wall time were requested, here allows 3600",
        ("--gpus", "7"): "Requested node configuration is not available",
        ("--memory", "9000G"): "Slurm rejected the job: Memory specification can not be satisfied",
        ("--after", "runs/none"): "no job was submitted for it",
    }.items():
        outcome = clew(*train(flat, "--on", "here", *words))
        assert outcome.code == 2 and message in outcome.err and outcome.err.count("\n") == 1, outcome
    assert not list(Path("runs").glob("*/*"))


def test_a_job_that_cannot_start_is_reported(site: Cluster, flat: Dataset) -> None:
    done(*train(flat, "--on", "here", "--nodes", "9", "--output", "runs/many"))
    until(lambda: "the partition does not have as many nodes" in done("site", "jobs"))
    assert "stopped" in done("stop", "runs/many")


@long
def test_a_wrong_profile_is_reported_before_anything_is_submitted(site: Cluster, tmp_path: Path) -> None:
    (tmp_path / "sites" / "odd.yaml").write_text(to_yaml({"scheduler": "slurm", "partition": "nowhere"}))
    outcome = clew("site", "check", "odd")
    assert outcome.code == 2 and "invalid partition" in outcome.err
    assert "accepts jobs from here" in done("site", "check", "here")


def test_a_job_that_slurm_forgot_is_lost_and_says_so(site: Cluster, flat: Dataset) -> None:
    done(*train(flat, "--output", "runs/gone", "--on", "here", "--no-follow"))
    file = Path("runs/jobs/gone/job.json")
    submission = json.loads(file.read_text())
    until(lambda: (file.parent / "end.json").exists())
    (file.parent / "end.json").unlink()
    submission["job"]["id"] = "99999"
    file.write_text(json.dumps(submission))
    outcome = clew("follow", "runs/gone")
    assert outcome.code == 1 and "Slurm does not know it any more" in outcome.err


def test_a_job_that_depends_on_a_failed_one_never_starts(site: Cluster, flat: Dataset) -> None:
    done(*train(flat, "--set", "fault=raise", "--set", "rank=0", "--output", "runs/bad", "--on", "here", "--no-follow"))
    outcome = clew("evaluate", "runs/bad", "--on", "here", "--after", "runs/bad", "--follow")
    assert outcome.code == 1 and "never started: a job that it depends on did not succeed" in outcome.err
    failed = clew("follow", "runs/jobs/bad")
    assert failed.code == 2 and "job" in failed.err and "failed" in failed.err


@long
def test_gpus_are_assigned_to_jobs(site: Cluster, flat: Dataset) -> None:
    script = done(*train(flat, "--on", "here", "--gpus", "2", "--nodes", "2", "--workers", "4", "--dry-run"))
    assert "--gres=gpu:4" in script and "--ntasks=4" in script
    assert not Path("runs").exists()
    Path("sites/here.yaml").write_text(Path("sites/here.yaml").read_text() + "setup: [srun env > given.txt]\n")
    done(*train(flat, "--output", "runs/gpu", "--on", "here", "--gpus", "1", "--follow"))
    assert "CUDA_VISIBLE_DEVICES=0" in Path("given.txt").read_text()


@long
def test_the_doctor_checks_the_nodes(site: Cluster) -> None:
    report = json.loads(done("doctor", "--on", "here", "--nodes", "2", "--json"))
    assert len(report["hosts"]) == 3
    names = {each["name"]: each["verdict"] for each in report["hosts"][1]["findings"]}
    assert names["locks"] == names["torch"] == names["ports"] == "good"


def test_credentials_reach_the_nodes_and_are_in_no_file_of_ours(
    site: Cluster, flat: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {name: f"very-secret-{number}" for number, name in enumerate(CREDENTIALS)}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    there = "; ".join(
        f'[ "${name}" = "very-secret-$(({number}))" ] || exit 9' for number, name in enumerate(CREDENTIALS)
    )
    profile = tmp_path / "sites" / "here.yaml"
    profile.write_text(f"{profile.read_text()}setup: [{json.dumps(there)}]\n")
    stored = ("--set", f"train.store.to={tmp_path / 'models'}", "--set", "train.store.what=[all]")
    done(*train(flat, *stored, "--output", "runs/key", "--on", "here", "--follow", epochs=1))
    assert list((tmp_path / "models").rglob("clew.json"))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 10 and not [path for path in files if b"very-secret-" in _without(path)]


def _without(path: Path) -> bytes:
    """The content of the file next to the check that the profile makes."""
    return path.read_bytes().replace(b"very-secret-$((", b"")


def tables(folder: Path) -> str:
    """Six files of events, as --input takes them."""
    rng = np.random.default_rng(3)
    for number in range(6):
        x = rng.normal(size=(50, 3)).astype(np.float32)
        Table({"x": x, "y": x.sum(axis=1)}).save(folder / f"events-{number}.h5")
    return str(folder / "*.h5")


@pytest.mark.parametrize("spread", [pytest.param("cores", marks=long), "mpi", "array"])
def test_prepare_makes_the_same_dataset_however_it_is_spread(
    spread: str, site: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    words = ("prepare", LINE, "--input", tables(tmp_path))
    done(*words, "--output", "home", "--workers", "1")
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    if spread == "mpi":
        request.getfixturevalue("mpi_site")
    output = done(*words, "--output", "away", "--workers", "2", "--on", "here", "--as", spread, "--follow")
    assert "finished: away" in output
    assert Dataset("away").manifest == Dataset("home").manifest


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("fault", "message"),
    {
        "os.kill(os.getpid(), 9)": r"rank 1 on n\d ended without a message \(exit code 137: signal 9\)",
        "os._exit(3)": r"rank 1 on n\d ended without a message \(exit code 3\)",
        "raise ValueError('boom on purpose')": "ValueError: boom on purpose",
    }.items(),
    ids=["killed", "gone", "raised"],
)
@long
def test_a_rank_that_fails_ends_the_mpi_job_and_is_named(
    fault: str, message: str, mpi_site: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(tmp_path / "cache"))
    faulty = f"        if os.environ['SLURM_PROCID'] == '1':\n            {fault}\n        return events\n"
    (tmp_path / "odd.py").write_text(Path(LINE).read_text().replace("        return events\n", faulty))
    words = ("prepare", "odd.py", "--input", tables(tmp_path), "--output", "away", "--workers", "3")
    outcome = clew(*words, "--on", "here", "--as", "mpi", "--follow")
    assert outcome.code not in (0, None) and re.search(message, outcome.err), outcome
    assert outcome.err.count("\n") == 1 and "away: " not in Path("jobs/away/log.txt").read_text()
    until(lambda: not mpi_site.call("squeue", "-h").strip())
    assert not Path("away").exists()
