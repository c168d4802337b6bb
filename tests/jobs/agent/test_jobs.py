"""Jobs with clew commands: submitted, run by an agent, and with all their results on the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import httpx
import numpy as np
import pytest

from clew import Client, Dataset
from clew.client.job import JobOrder
from clew.client.submission import submission
from clew.errors import ConfigError, RunError
from clew.jobs.agent.commands import order_task
from clew.jobs.agent.completion import Delivery, finish
from clew.jobs.agent.folder import AgentFolder
from clew.jobs.task import CommandTask
from tests.jobs.agent.conftest import StartAgent
from tests.tuning import RECIPE

ClientFor = Callable[..., Client]
SMALL = ("--set", "model.hidden=8", "--set", "train.threads=1")


def command(client: Client, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    token = client.connection.http.headers["Authorization"].removeprefix("Bearer ")
    environment = {**os.environ, "CLEW_SERVER": client.server, "CLEW_TOKEN": token}
    clew = [sys.executable, "-c", "from clew.cli.main import run; run()"]
    return subprocess.run(
        [*clew, *map(str, words)], capture_output=True, text=True, timeout=200, env=environment, cwd=cwd, check=False
    )


@pytest.mark.long
def test_a_training_is_submitted_followed_recorded_and_evaluated(
    client_for: ClientFor, start_agent: StartAgent, dataset: Dataset, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    finished = command(
        ada, "submit", "tracking", "--dataset", dataset.path, "--epochs", 2, *SMALL, "--output", "first", "--follow"
    )
    assert finished.returncode == 0, finished.stderr
    assert "epoch   2/2" in finished.stdout and ": done" in finished.stdout
    (job,) = ada.jobs.list()
    assert (job.name, job.state) == ("first", "done") and job.run is not None
    run = ada.runs.get(job.run)
    assert (run.name, run.state, run.epochs_done, run.job) == ("first", "finished", 2, job.id)
    assert run.dataset == dataset.manifest.key and "efficiency" in run.metrics
    names = {each.name for each in ada.artefacts.list(run.id)}
    assert {"report.html", "checkpoints/best.safetensors", "checkpoints/last.safetensors"} <= names
    saved = ada.artefacts.download(run.id, "report.html", tmp_path / "report.html")
    assert "<html" in saved.read_text()[:500]
    finished = command(ada, "submit", job.id, "--kind", "evaluate", "--wait")
    assert finished.returncode == 0, finished.stderr + finished.stdout
    assert any(each.name.startswith("plots/") for each in ada.artefacts.list(run.id))
    shown = command(ada, "jobs").stdout
    assert "first" in shown and "evaluate" in shown
    assert "epoch   1/2" in command(ada, "logs", job.id).stdout
    about = json.loads(command(ada, "jobs", job.id, "--json").stdout)
    assert about["spec"]["train"]["epochs"] == 2 and about["history"][-1]["kind"] == "done"


@pytest.mark.long
def test_a_training_that_stops_early_resumes_in_the_same_run(
    client_for: ClientFor, start_agent: StartAgent, dataset: Dataset
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    settings = ["train.epochs=100000", "train.time_limit_minutes=0.01", "model.hidden=8", "train.threads=1"]
    job = ada.jobs.submit(submission("tracking", settings, name="long", dataset=str(dataset.path), requeue=1))
    ended = ada.jobs.wait(job.id, seconds=200)
    assert (ended.state, ended.exit_code, ended.attempt) == ("failed", 75, 2)
    assert ended.run is not None and [each.job for each in ada.runs.list()] == [job.id]
    records = ada.connection.call("GET", f"/runs/{ended.run}/records", params={"stream": "rank-0", "limit": 1000})[
        "items"
    ]
    assert [each["kind"] for each in records].count("resume") == 1
    assert ada.runs.get(ended.run).state == "stopped"


@pytest.mark.long
def test_a_users_recipe_is_sent_along_and_its_data_is_found_by_key(
    client_for: ClientFor, start_agent: StartAgent, flat: Dataset, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    inputs = json.dumps([str(flat.path.parent / "*.npz")])
    finished = command(
        ada, "submit", RECIPE, "--kind", "prepare", "--set", f"prepare.input={inputs}", "--output", "points", "--wait"
    )
    assert finished.returncode == 0, finished.stderr + finished.stdout
    (listed_dataset,) = ada.datasets.list()
    assert listed_dataset.name == "points" and listed_dataset.key == flat.manifest.key
    study = tmp_path / "study.yaml"
    space = "{train.optimizer.lr: {log: [1e-3, 1e-1]}}"
    study.write_text(
        f"recipe: {RECIPE}\ntrain: {{epochs: 1, threads: 1}}\ntune: {{space: {space}, trials: 2, parallel: 1}}\n"
    )
    finished = command(ada, "submit", study, "--kind", "tune", "--dataset", listed_dataset.key, "--wait")
    assert finished.returncode == 0, finished.stderr + finished.stdout + "".join(ada.jobs.log(2))
    (listed_study,) = ada.studies.list()
    assert listed_study.external and listed_study.counts == {"complete": 2} and listed_study.best
    assert {each.name for each in ada.runs.list()} == {"trial-0000", "trial-0001"}


@pytest.mark.long
def test_a_model_without_a_recipe_is_trained_where_the_agent_is(
    client_for: ClientFor, start_agent: StartAgent, client: httpx.Client, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    assert client.patch(f"/api/v1/users/{ada.me()['name']}", json={"quota_bytes": 1000}).status_code == 200
    (tmp_path / "net.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(4, 2)\n")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"], file["Y"] = np.eye(4, dtype=np.float32).repeat(25, 0), np.arange(100) % 2
    words = ("--model", "net.py:build", "--train", "a*.h5", "--features", "X", "--labels", "Y", "--epochs", 1, "--wait")
    finished = command(ada, "submit", *words, "--set", "train.threads=1", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    (job,) = ada.jobs.list()
    assert job.name == "net" and job.run is not None
    assert "accuracy" in ada.runs.get(job.run).metrics
    assert job.state == "done" and "not everything could be stored" in job.reason
    assert command(ada, "submit", "--train", "a.h5").returncode == 2


def test_figures_of_a_benchmark_land_among_the_benchmarks(client_for: ClientFor, tmp_path: Path) -> None:
    ada = client_for("ada")
    request = submission("scale tracking --dataset /data --workers 1,2", kind="bench", name="sizes")
    job, root = ada.jobs.submit(request), AgentFolder(tmp_path)
    agent = ada.connection.call("POST", "/agents", body={"name": "a", "uid": "00000000", "slots": {"cpus": 1}})["id"]
    (answer,) = ada.connection.call("POST", f"/agents/{agent}/poll", body={"held": [], "wait": 0})["orders"]
    order = JobOrder.model_validate(answer)
    task = order_task(order, root)
    assert isinstance(task, CommandTask)
    words = task.arguments
    assert (order.job, words[:6]) == (job.id, ("bench", "scale", "tracking", "--dataset", "/data", "--workers"))
    output = Path(words[-1])
    assert words[-2] == "--output" and output.is_relative_to(tmp_path)
    output.mkdir(parents=True)
    (output / "scale.json").write_text(json.dumps({"speed-up": [1.0, 1.9]}))
    for _ in range(2):  # the answer may get lost
        assert finish(order, root, ada.server, succeeded=True) == Delivery()
    (benchmark,) = ada.connection.call("GET", "/benchmarks", params={"name": "sizes"})["items"]
    assert benchmark["document"] == {"speed-up": [1.0, 1.9]} and benchmark["host"]


@pytest.mark.long
def test_exit_codes_are_those_of_jobs(client_for: ClientFor, start_agent: StartAgent, tmp_path: Path) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    finished = command(ada, "submit", "tracking", "--dataset", tmp_path, "--wait")
    assert finished.returncode == 2 and "no dataset there" in finished.stdout
    job = next(ada.jobs.list())
    assert command(ada, "logs", job.id, "--follow").returncode == 2
    assert command(ada, "jobs", 999_999).returncode == 2
    for words in (("stop", job.id), ("requeue", 999_999), ("jobs", "--state", "dun"), ("submit", "trackin")):
        finished = command(ada, *words)
        assert finished.returncode == 2 and finished.stderr.count("\n") == 1, finished.stderr
    retried = command(ada, "retry", job.id)
    assert f"repeats job {job.id}" in retried.stdout
    assert ada.jobs.wait(job.id + 1, seconds=60).state == "failed"
    assert "now" in command(ada, "jobs", "--agents").stdout


def test_a_job_that_no_agent_can_run_is_reported(client_for: ClientFor) -> None:
    ada = client_for("ada")
    finished = command(ada, "submit", "tracking", "--dataset", "/data", "--cpus", 64)
    assert (
        finished.returncode == 0
        and "no agent that may run it is connected; start one with: clew agent" in finished.stdout
    )
    (job,) = ada.jobs.list()
    introduction = {"name": "small", "uid": "00000000", "slots": {"cpus": 1}}
    ada.connection.call("POST", "/agents", body=introduction)
    assert "no agent that may run it has enough resources" in command(ada, "jobs", job.id).stdout
    assert "cancelled" in command(ada, "stop", job.id).stdout
    in_image = command(ada, "submit", "tracking", "--dataset", "/data", "--container", "clew").stdout
    assert "no agent that may run it can run container images" in in_image.replace("\n", " ")


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        (["train.epochz=3"], {}, "unknown key 'train.epochz'"),
        ([], {"kind": "tune"}, "no section `tune`"),
        ([], {"kind": "prepare"}, "prepare.input is empty"),
        ([], {"dataset": "nowhere"}, "dataset nowhere: no such folder"),
        ([], {"dataset": "/data", "name": "a b"}, "name: .a b. is not accepted: only letters"),
        ([], {"dataset": "/data", "resources": {"cpus": -1}}, "resources.cpus"),
        ([], {"kind": "evaluate"}, "name the number of the job"),
        (["a=1"], {"kind": "bench"}, "the arguments of `clew bench`"),
        ([], {"model": {"model": "none.py:build", "train": ["/a"]}}, "none.py:build: no such file"),
        ([], {"model": {"model": "net.keras"}}, "name the files to train on"),
    ],
    ids=["key", "tune", "prepare", "dataset", "name", "cpus", "evaluate", "bench", "file", "files"],
)
def test_mistakes_are_found_before_anything_is_sent(settings: list[str], options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        submission("tracking", settings, **options)  # type: ignore[arg-type]


def test_a_key_that_no_dataset_has_is_reported(tmp_path: Path) -> None:
    request = submission("tracking", dataset="0123456789abcdef")
    order = JobOrder(
        job=1,
        key="1-0123456789abcdef",
        attempt=1,
        kind="train",
        name="first",
        spec=dict(request.spec),
        files={},
        arguments=(),
        target_key=None,
        dataset=request.dataset,
        resources=request.resources,
        token="",
    )
    with pytest.raises(RunError, match="no dataset has the key 0123456789abcdef"):
        order_task(order, AgentFolder(tmp_path))


def test_a_job_has_as_many_workers_as_processes(tmp_path: Path) -> None:
    request = submission("tracking", ["train.workers=3"], dataset="/data", resources={"memory": 10})
    needs = request.resources
    assert (needs.workers, needs.cpus, needs.memory, request.dataset) == (3, 1, 10, "/data")
    assert (needs.total_cpus, needs.total_memory) == (3, 30)
    recipe_file = tmp_path / "own.py"
    recipe_file.write_text(Path(RECIPE).read_text())
    travelling = submission(str(recipe_file), dataset="0123456789abcdef0123")
    assert travelling.spec["recipe"] == "own.py" and list(travelling.files) == ["own.py"]
