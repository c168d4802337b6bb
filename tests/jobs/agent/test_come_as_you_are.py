"""Models from elsewhere as jobs: LightningModules, boosted trees, weaver, from `clew submit` to the results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

import clew
from clew import Client
from clew.client.runs import RunInfo
from tests.cli import done
from tests.jobs.agent.conftest import StartAgent
from tests.jobs.agent.test_jobs import command
from tests.models.keras_models import cnn, images, saved
from tests.models.test_estimators import RECIPE, events
from tests.models.test_from_others import PREPARE, TRAIN
from tests.models.weaver import TOP, write_jets
from tests.test_docs import ROOT, _blocks

ClientFor = Callable[..., Client]
COLUMNS = ("--train", "events.h5", "--features", "pt,eta,mass", "--labels", "signal")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, with a file of events."""
    path = tmp_path / "mine"
    path.mkdir()
    monkeypatch.chdir(path)
    with h5py.File("events.h5", "w") as file:
        for name, values in events(400).items():
            file[name] = values
    return path


def submitted(client: Client, *words: object) -> RunInfo:
    """Submit a job to an agent and wait; return its run, after a check of state, metrics, model and report."""
    finished = command(client, "submit", *words, "--set", "train.threads=1", "--wait")
    assert finished.returncode == 0, finished.stderr + finished.stdout
    (job,) = client.jobs.list()
    assert (job.kind, job.state) == ("train", "done") and job.run is not None
    run = client.runs.get(job.run)
    assert run.state == "finished" and (run.metrics["loss"] or 0) > 0
    names = {each.name for each in client.artefacts.list(run.id)}
    assert {"report.html", "checkpoints/best.safetensors", "checkpoints/last.safetensors"} <= names
    return run


def fetched_model(client: Client, run: RunInfo, agent: Path, folder: Path) -> bool:
    """Whether the server has the weights that the agent's run has."""
    saved = client.artefacts.download(run.id, "checkpoints/best.safetensors", folder / "best.safetensors")
    (trained,) = agent.glob("jobs/*/**/checkpoints/best.safetensors")
    return saved.read_bytes() == trained.read_bytes()


@pytest.mark.long
def test_a_lightning_module(client_for: ClientFor, start_agent: StartAgent, folder: Path) -> None:
    ada = client_for("ada")
    agent = start_agent(ada, clew=True)
    Path("my.py").write_text(_blocks(ROOT / "docs" / "howto" / "from-lightning.md", "python")[0])
    settings = ("--set", "model.arguments.hidden=8", "--set", "model.batch=tuple")
    run = submitted(ada, "--model", "my.py:LitModel", *COLUMNS, "--epochs", 2, *settings)
    assert {"val_loss"} <= run.metrics.keys() and run.epochs_done == 2
    assert run.recipe == "lightning" and fetched_model(ada, run, agent.folder, folder)


@pytest.mark.long
def test_a_lightning_data_module(client_for: ClientFor, start_agent: StartAgent, folder: Path) -> None:
    ada = client_for("ada")
    start_agent(ada, clew=True)
    Path("modules.py").write_text((ROOT / "tests" / "models" / "lightning" / "modules.py").read_text())
    run = submitted(ada, "--model", "modules.py:Classifier", "--train", "modules.py:Data", "--epochs", 1)
    assert "val_acc" in run.metrics


@pytest.mark.long
@pytest.mark.parametrize("estimator", ["xgboost", "sklearn.ensemble:HistGradientBoostingClassifier"])
def test_an_estimator(estimator: str, client_for: ClientFor, start_agent: StartAgent, folder: Path) -> None:
    ada = client_for("ada")
    agent = start_agent(ada, clew=True)
    settings = ("--set", "train.early_stopping.patience=3", "--weight", "weight")
    run = submitted(ada, "--estimator", estimator, *COLUMNS, *settings)
    assert "auc" in run.metrics and fetched_model(ada, run, agent.folder, folder)


@pytest.mark.long
def test_a_recipe_with_an_estimator(client_for: ClientFor, start_agent: StartAgent, folder: Path) -> None:
    ada = client_for("ada")
    agent = start_agent(ada, clew=True)
    Path("trees.py").write_text(RECIPE)
    clew.prepare("trees.py", input=["events.h5"], output="dataset", workers=1)
    run = submitted(ada, "trees.py", "--dataset", "dataset")
    assert (run.metrics["accuracy"] or 0) > 0.5 and fetched_model(ada, run, agent.folder, folder)


@pytest.mark.long
def test_a_recipe_from_weaver(client_for: ClientFor, start_agent: StartAgent, folder: Path) -> None:
    ada = client_for("ada")
    agent = start_agent(ada, clew=True)
    Path("top.yaml").write_text(TOP)
    Path("network.py").write_text(_blocks(ROOT / "docs" / "howto" / "from-weaver.md", "python")[0])
    write_jets(Path("train_0.root"), 200)
    done("init", "--from-weaver", "top.yaml", "network.py")
    done("prepare", "top.py", "--input", "train_0.root", "--output", "dataset", "--workers", "1")
    run = submitted(ada, "top.py", "--dataset", "dataset", "--epochs", 1)
    assert "accuracy" in run.metrics and fetched_model(ada, run, agent.folder, folder)


@pytest.mark.long
def test_a_keras_model(client_for: ClientFor, start_agent: StartAgent, folder: Path) -> None:
    ada = client_for("ada")
    agent = start_agent(ada, clew=True)
    x, y = images(200)
    clew.Table({"X": x, "Y": y}).save("images.h5")
    saved(cnn(), Path("cnn.keras"))
    columns = ("--train", "images.h5", "--features", "X", "--labels", "Y")
    run = submitted(ada, "--model", "cnn.keras", *columns, "--epochs", 1)
    assert "accuracy" in run.metrics and fetched_model(ada, run, agent.folder, folder)


@pytest.mark.long
def test_settings_from_ariadne(client_for: ClientFor, start_agent: StartAgent, folder: Path) -> None:
    ada = client_for("ada")
    agent = start_agent(ada, clew=True)
    Path("prepare.cfg").write_text(PREPARE)
    Path("train.cfg").write_text(TRAIN)
    done("init", "graphs", "--from-ariadne", "prepare.cfg", "train.cfg")
    done("data", "generate", "tracking", "--events", "40", "--output", "events")
    done("prepare", "graphs.yaml", "--input", "events", "--output", "dataset", "--workers", "1")
    run = submitted(ada, "graphs.yaml", "--dataset", "dataset", "--epochs", 1)
    assert run.recipe == "tracking" and fetched_model(ada, run, agent.folder, folder)
