"""Outputs of jobs in a store, and datasets that are used instead of being prepared again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clew import Client, Dataset, Run
from clew.client.job import JobOrder, Resources
from clew.client.submission import submission
from clew.core.config import to_yaml
from clew.data.prepare.reuse import find_dataset
from clew.errors import ConfigError, RunError
from clew.jobs.agent.commands import order_task
from clew.jobs.agent.folder import AgentFolder
from clew.jobs.task import TrainTask
from clew.storage.models import find_models
from tests.jobs.agent.conftest import StartAgent
from tests.jobs.agent.test_jobs import command
from tests.tuning import RECIPE

ClientFor = Callable[..., Client]
SMALL = {"train.epochs": 1, "train.threads": 1}
SCRIPT = """
from pathlib import Path
import clew
clew.log(loss=0.5, val_accuracy=0.75)
Path("weights.txt").write_text("1 2 3")
clew.artefact("weights.txt")
"""


@pytest.mark.long
def test_a_trained_model_is_stored_and_found(
    client_for: ClientFor, start_agent: StartAgent, flat: Dataset, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    options = ("--dataset", flat.path, "--epochs", 1, "--set", "train.threads=1", "--output", "slope", "--wait")
    finished = command(ada, "submit", RECIPE, *options, "--store", "models", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    (job,) = ada.jobs.list()
    assert job.stored is not None and Path(job.stored).parent == tmp_path / "models"
    listed = command(ada, "model", "find", tmp_path / "models", "--where", "val_loss < 100", "--json")
    (model,) = json.loads(listed.stdout)
    assert model["location"] == job.stored and model["run"] == "slope" and model["dataset_key"] == flat.manifest.key
    files = {path.relative_to(job.stored).as_posix() for path in Path(job.stored).rglob("*") if path.is_file()}
    assert {"report.html", "records/rank-0.jsonl", "checkpoints/best.safetensors", f"code/{Path(RECIPE).name}"} <= files
    assert f"stored at    {job.stored}" in command(ada, "jobs", job.id).stdout
    finished = command(ada, "evaluate", job.stored, "--dataset", flat.path)  # its recipe's code came along
    assert finished.returncode == 0, finished.stderr + finished.stdout


def test_a_scripts_metrics_and_files_are_stored_and_found(
    client_for: ClientFor, start_agent: StartAgent, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    (tmp_path / "train.py").write_text(SCRIPT)
    store = tmp_path / "models"
    finished = command(ada, "submit", "--kind", "script", "train.py", "--store", store, "--wait", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    (model,) = find_models(str(store), "val_accuracy > 0.7")
    assert (Path(model.location) / "artefacts" / "weights.txt").read_text() == "1 2 3"
    assert (Path(model.location) / "report.html").exists()


@pytest.mark.long
def test_an_evaluation_stores_its_run_again_with_the_new_metrics(
    client_for: ClientFor, start_agent: StartAgent, flat: Dataset, tmp_path: Path
) -> None:
    ada, store = client_for("ada"), str(tmp_path / "models")
    start_agent(ada, clew=True)
    trained = ada.submit(RECIPE, SMALL, dataset=str(flat.path), name="slope", store=store)
    trained.wait(seconds=100)
    (model,) = find_models(store)
    assert Run(Path(model.location)).evaluations() == {}
    evaluation = ada.submit(str(trained.id), kind="evaluate", name="checked", store=store)
    evaluation.wait(seconds=100)
    assert evaluation.stored == trained.stored == model.location
    (record,) = Run(Path(model.location)).evaluations().values()
    assert record["events"] > 0 and "loss" in record["metrics"]
    (again,) = find_models(store)
    assert set(again.facts) > set(model.facts), "the evaluation's metrics can be searched for"


@pytest.mark.long
def test_a_study_stores_the_run_of_its_best_trial(
    client_for: ClientFor, start_agent: StartAgent, flat: Dataset, tmp_path: Path
) -> None:
    ada, store = client_for("ada"), str(tmp_path / "models")
    start_agent(ada, clew=True)
    space = {"train.optimizer.lr": {"choice": [1e-6, 0.05]}}
    tune = {"space": space, "trials": 2, "parallel": 1, "sampler": {"name": "grid"}}
    settings = {"recipe": RECIPE, "train": {"epochs": 2, "threads": 1, "batch_size": 60}, "tune": tune}
    (tmp_path / "study.yaml").write_text(to_yaml(settings))
    job = ada.submit(str(tmp_path / "study.yaml"), dataset=str(flat.path), kind="tune", name="rates", store=store)
    job.wait(seconds=200)
    (model,) = find_models(store)
    assert model.location == job.stored and Path(model.location).name.startswith("rates-")
    assert Run(Path(model.location)).config().data["train"]["optimizer"]["lr"] == 0.05


@pytest.mark.long
def test_a_benchmark_stores_its_files(
    client_for: ClientFor, start_agent: StartAgent, flat: Dataset, tmp_path: Path
) -> None:
    ada, store = client_for("ada"), tmp_path / "benchmarks"
    start_agent(ada, clew=True)
    words = f"scale {RECIPE} --dataset {flat.path} --workers 1 --strategy allreduce --repeat 1 --threads 1"
    job = ada.submit(words, kind="bench", name="sizes", store=str(store))
    job.wait(seconds=200)
    assert job.stored == str(store / f"sizes-{job.id}")
    assert json.loads((Path(job.stored) / "scale.json").read_text())["trainings"][0]["workers"] == 1


def test_a_store_that_cannot_be_written_is_reported_and_the_job_is_done(
    client_for: ClientFor, start_agent: StartAgent, tmp_path: Path
) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "file").write_text("not a folder")
    job = ada.jobs.submit(submission(str(tmp_path / "train.py"), kind="script", store=str(tmp_path / "file")))
    ended = ada.jobs.wait(job.id, seconds=100)
    assert (ended.state, ended.stored) == ("done", None)
    assert ended.reason.startswith(f"not stored at {tmp_path / 'file'}: ")


@pytest.mark.long
def test_a_dataset_is_prepared_once_wherever_it_is(
    client_for: ClientFor, start_agent: StartAgent, flat: Dataset, tmp_path: Path
) -> None:
    ada = client_for("ada")
    first = start_agent(ada, clew=True)
    inputs = f"prepare.input={json.dumps([str(flat.path.parent / '*.npz')])}"
    store, key = tmp_path / "store", flat.manifest.key

    def prepare(name: str, *options: object) -> str:
        words = ("--kind", "prepare", "--set", inputs, "--set", "prepare.workers=1", "--output", name, "--follow")
        finished = command(ada, "submit", RECIPE, *words, *options)
        assert finished.returncode == 0, finished.stderr + finished.stdout
        return "".join(finished.stdout.split())

    assert "notpreparedagain" not in prepare("first", "--store", store)
    stored = store / f"dataset-{key[:16]}"
    assert Dataset(stored).manifest.key == key and str(stored) in ada.datasets.locations(key)
    assert f"thedataset{key[:16]}isat{first.folder}" in prepare("second")
    first.end()

    second = start_agent(ada, "b", clew=True)
    assert f"thedataset{key[:16]}isat" in prepare("third"), "the server knows it"
    (third,) = second.folder.glob("jobs/*/output/third")
    assert Dataset(third).complete and Dataset(third).manifest.key == key
    for listed in ada.datasets.list():
        ada.connection.call("DELETE", f"/datasets/{listed.id}")
    second.end()
    start_agent(ada, "c", clew=True)
    assert f"thedataset{key[:16]}isat{stored}" in prepare("fourth", "--store", store)


def test_an_incomplete_or_other_dataset_is_not_used(flat: Dataset, tmp_path: Path) -> None:
    key = flat.manifest.key
    assert find_dataset(key, [str(flat.path.parent)]) == str(flat.path)
    assert find_dataset("0" * 64, [str(flat.path.parent)]) is None
    partial = tmp_path / "partial"
    partial.mkdir()
    (partial / "manifest.json").write_text((flat.path / "manifest.json").read_text())
    assert find_dataset(key, [str(partial)]) is None


def test_a_registered_place_that_holds_another_dataset_is_not_used(flat: Dataset, tmp_path: Path) -> None:
    def dataset_of_job(key: str, place: str) -> str | None:
        order = JobOrder(
            job=1, key="k", attempt=1, kind="train", name="n", spec={}, files={}, arguments=(), target_key=None,
            dataset=key, locations=(place,), resources=Resources(), token="t",
        )  # fmt: skip
        task = order_task(order, AgentFolder(tmp_path / "agent"))
        assert isinstance(task, TrainTask)
        return task.dataset

    place = flat.path.as_uri()
    assert dataset_of_job(flat.manifest.key, place) == str(flat.path)
    for other in (place, "https://127.0.0.1:9/poison", str(flat.path)):
        with pytest.raises(RunError, match=r"is not at .*, as seen from this agent"):
            dataset_of_job("0" * len(flat.manifest.key), other)


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("rucoi:user.me:models", "unknown scheme 'rucoi'"),
        ("https://me:word@host/models", "contains a password or token"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused_before_anything_is_sent(store: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        submission("tracking", dataset="/data", store=store)
