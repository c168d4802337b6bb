"""An estimator's run that was stopped or killed is resumed; a fitted estimator goes to a store or a server and back."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import clew
from clew import Client, Run, Table
from tests.cli import SCRIPT, done
from tests.cli import clew as command
from tests.jobs.agent.test_jobs import command as command_with_server
from tests.models.test_estimators import LIBRARIES, events
from tests.server.conftest import client, client_for, person, server, shared_server

__all__ = ["client", "client_for", "person", "server", "shared_server"]

LONG: dict[str, tuple[str, str]] = {
    "xgboost": ("{n_estimators: 3000, max_depth: 3, subsample: 0.7}", "step"),
    "lightgbm": ("{n_estimators: 3000, num_leaves: 7, subsample: 0.7, subsample_freq: 1}", "step"),
    "sklearn.ensemble:RandomForestClassifier": ("{n_estimators: 150}", "load"),
}
"""Arguments of a training of some seconds, and the kind of record after which it is stopped."""
RECIPE = """
import clew
import numpy as np


class Rounds(clew.Section):
    rounds: int = 20


class Trees(clew.Recipe):
    Config = Rounds

    def read(self, path):
        return clew.readers.read(path)

    def label_columns(self):
        return ["signal"]

    def prepare(self, events):
        labels = {"labels": events["signal"]} if "signal" in events else {}
        return clew.Table({"features": np.stack([events["pt"], events["eta"]], axis=1), **labels})

    def estimator(self):
        from lightgbm import LGBMClassifier
        return LGBMClassifier(n_estimators=self.config.rounds)

    def reconstruct(self, samples, outputs):
        return clew.Table({"score": outputs["output"][:, 1]})
"""
SIGNALS = {signal.SIGKILL: (-9, "interrupted"), signal.SIGTERM: (75, "stopped"), signal.SIGINT: (130, "interrupted")}
"""Exit code, and state of the run."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with h5py.File("events.h5", "w") as file:
        for name, values in events(400).items():
            file[name] = values


def words(estimator: str, arguments: str, output: str) -> tuple[str, ...]:
    columns = ("--features", "pt,eta,mass", "--labels", "signal", "--weight", "weight", "--scale", "standard")
    settings = ("--set", f"model.arguments={arguments}", "--set", "train.threads=1", "--set", "train.seed=5")
    return ("train", "--estimator", estimator, "--train", "events.h5", *columns, *settings, "--output", output)


def stopped(number: int, run: Run, after: str, *words: str) -> int:
    """Start a training, send it a signal after its first record of a kind, and return its exit code."""
    with subprocess.Popen([SCRIPT, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not any(run.records(kind=after)):
            assert process.poll() is None, "the training ended too early"
            time.sleep(0.02)
        os.kill(process.pid, number)
        return process.wait(100)


def history(run: Run) -> list[Any]:
    """Losses and metrics of a run, with their steps."""
    values = {"step": "loss", "validation": "metrics"}
    return [(each["step"], each[values[each["kind"]]]) for each in run.history() if each["kind"] in values]


@pytest.mark.long
@pytest.mark.parametrize(
    ("estimator", "number"),
    [
        *(("xgboost", each) for each in SIGNALS),
        ("lightgbm", signal.SIGKILL),
        ("sklearn.ensemble:RandomForestClassifier", signal.SIGKILL),
    ],
)
@pytest.mark.timeout(400)
def test_a_run_that_was_stopped_ends_like_one_that_was_not(estimator: str, number: signal.Signals) -> None:
    arguments, after = LONG[estimator]
    run = Run(Path("runs/stopped"))
    assert (stopped(number, run, after, *words(estimator, arguments, "runs/stopped")), run.state) == SIGNALS[number]
    assert not run.checkpoint("best").exists()
    if number != signal.SIGKILL:
        assert "resume with: clew train --resume runs/stopped" in (run.end() or {})["message"]
    assert command("train", "--resume", "runs/stopped").code == 0
    assert command(*words(estimator, arguments, "runs/whole")).code == 0
    whole = Run.open("runs/whole")
    assert run.state == "finished" and history(run) == history(whole)
    predicted, expected = (clew.predict(each, input=["events.h5"])["output"] for each in (run, whole))
    np.testing.assert_array_equal(predicted, expected)


def test_what_cannot_be_resumed_is_one_line() -> None:
    assert command(*words("xgboost", "{n_estimators: 3}", "runs/first")).code == 0
    outcome = command("train", "--resume", "runs/first")
    assert outcome.code == 2 and "is finished, and an estimator is not trained longer" in outcome.err
    with Run.open("runs/first").writer("rank-0") as writer:
        writer.write("end", status="stopped", message="stopped")
    for option, message in (("--epochs", "has its own number of rounds"), ("--workers", "is trained in one process")):
        outcome = command("train", "--resume", "runs/first", option, "2")
        assert outcome.code == 2 and message in outcome.err and outcome.err.count("\n") <= 2


def test_a_recipe_with_an_estimator_under_every_verb() -> None:
    Path("trees.py").write_text(RECIPE)
    done("prepare", "trees.py", "--input", "events.h5", "--output", "dataset", "--workers", "1")
    options = ("--dataset", "dataset", "--set", "train.threads=1")
    limit = ("--set", "train.time_limit_minutes=0.00001")
    assert command("train", "trees.py", *options, *limit, "--output", "runs/first").code == 75
    done("train", "--resume", "runs/first", "--time-limit", "10m")
    done("train", "trees.py", *options, "--output", "runs/whole")
    assert history(Run.open("runs/first")) == history(Run.open("runs/whole"))
    done("evaluate", "runs/first", "--split", "val")
    done("export", "runs/first", "--to", "onnx", "--output", "trees.onnx")
    for model, rows in (("runs/first", "rows.h5"), ("trees.onnx", "exported.h5")):
        done("predict", model, "--input", "events.h5", "--output", rows)
    scores, exported = (Table.load(name).fixed("score") for name in ("rows.h5", "exported.h5"))
    np.testing.assert_allclose(scores, exported, atol=1e-4)
    study = "recipe: trees.py\ntrain: {dataset: dataset}\ntune: {trials: 2, space: {rounds: {choice: [5, 10]}}}\n"
    Path("study.yaml").write_text(study)
    done("tune", "run", "study.yaml", "--output", "study")
    assert len(list(Path("study/trials").iterdir())) == 2


@pytest.mark.parametrize("estimator", LIBRARIES)
def test_the_model_of_a_store_predicts_the_same_numbers(estimator: str) -> None:
    done(*words(estimator, str(LIBRARIES[estimator]), "runs/first"))
    done("predict", "runs/first", "--input", "events.h5", "--output", "first.h5")
    done("model", "put", "runs/first", "store", "--name", "trees")
    assert "store/trees" in done("model", "find", "store", "--where", "val_auc > 0.5")
    assert "no model" in done("model", "find", "store", "--where", "val_auc > 1.5")
    done("model", "get", "store/trees", "--output", "runs/fetched")
    done("predict", "runs/fetched", "--input", "events.h5", "--output", "again.h5")
    first, again = (Table.load(name).fixed("output") for name in ("first.h5", "again.h5"))
    assert first.shape == (400, 2)
    np.testing.assert_array_equal(first, again)


def test_the_model_of_a_server_predicts_the_same_numbers(client_for: Callable[..., Client]) -> None:
    ada = client_for("ada")
    done(*words("lightgbm", "{n_estimators: 20}", "runs/first"))
    pushed = command_with_server(ada, "runs", "push", "runs/first")
    assert pushed.returncode == 0, pushed.stderr
    (run,) = ada.runs.list()
    assert (run.state, run.epochs_done) == ("finished", 20) and (run.metrics["auc"] or 0) > 0.5
    fetched = command_with_server(ada, "runs", "get", run.id, "--output", "runs/fetched")
    assert fetched.returncode == 0, fetched.stderr
    first, fetched_values = (
        clew.predict(name, input=["events.h5"])["output"] for name in ("runs/first", "runs/fetched")
    )
    np.testing.assert_array_equal(first, fetched_values)
