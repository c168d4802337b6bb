"""Options of asynchronous strategies, and every way to start their processes. `test_strategies` has their contract."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clew
from clew import Dataset, Run, Table
from clew.errors import ClewError, ConfigError, StoppedError
from clew.training.api import resume
from clew.training.asynchronous.master_weights import MasterWeights
from clew.training.config import TrainConfig
from clew.training.strategy_table import ASYNCHRONOUS
from tests.training import recipe, validations, weights

pytestmark = pytest.mark.timeout(300)

BIN, ROOT = Path(sys.executable).parent, Path(__file__).parents[3]
SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 25, "threads": 1, "optimizer": {"lr": 0.01}, "workers": 2}
CASES: dict[str, Any] = {
    "two masters": {"strategy": "downpour", "asynchronous": {"masters": 2}},
    "two masters, rounds": {"strategy": "diloco", "asynchronous": {"masters": 2, "sync_every": 8}},
    "three masters, quorum": {"strategy": "backup", "asynchronous": {"masters": 3, "quorum": 0.5}},
    "three masters, four workers": {"strategy": "downpour", "workers": 4, "asynchronous": {"masters": 3}},
    "groups": {"strategy": "downpour", "asynchronous": {"groups": 2}},
    "groups, energy": {"strategy": "gem", "asynchronous": {"groups": 2}},
    "overlap": {"strategy": "downpour", "asynchronous": {"overlap": True}},
    "overlap, deltas": {"strategy": "downpour", "asynchronous": {"overlap": True, "sync_every": 2}},
    "overlap, elastic": {"strategy": "easgd", "asynchronous": {"overlap": True, "sync_every": 2}},
    "bf16": {"strategy": "downpour", "asynchronous": {"transfer": "bf16"}},
    "staleness": {"strategy": "downpour", "asynchronous": {"staleness": 1}},
    "warm-up": {"strategy": "downpour", "asynchronous": {"warmup": 5}},
    "thread": {"strategy": "downpour", "validation": "thread"},
    "disk": {"strategy": "downpour", "loading": {"keep": "disk", "window": 2}},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("chain")
    x = np.random.default_rng(3).normal(size=(600, 3)).astype(np.float32)
    Table({"x": x, "y": np.tanh(x @ [1, -2, 0.5]).astype(np.float32)}).save(folder / "events.h5")
    source, shares = [str(folder / "events.h5")], {"train": 0.8, "val": 0.2}
    return clew.prepare(recipe("chain"), input=source, output=str(folder / "set"), split=shares, workers=1)


def trained_samples(log: Path) -> Counter[str]:
    return Counter(line for file in log.iterdir() for line in file.read_text().split())


def train(data: Dataset, folder: Path, norm: bool = False, fault: str = "none", **settings: Any) -> Run:
    log = folder / "samples"
    log.mkdir(exist_ok=True)
    chain = recipe("chain", log=str(log), norm=norm, fault=fault)
    return clew.train(chain, data, output=folder / "run", **{**SETTINGS, **settings})


def check(run: Run, data: Dataset, epochs: int = 2) -> dict[str, Any]:
    """Check that every sample was used once per epoch, every process ended, every epoch was validated.

    Returns the record of what the workers did.
    """
    assert run.state == "finished"
    for stream in run.streams():
        end = run.last("end", stream)
        assert end is not None and end["status"] == "finished", stream
    assert {record["epoch"] for record in run.records(kind="validation")} == set(range(epochs))
    record = run.last("workers")
    assert record is not None
    if not record["returned"]:
        samples = [str(number) for number in data.read("train").fixed("number")]
        assert trained_samples(run.path.parent / "samples") == Counter(dict.fromkeys(samples, epochs))
    last = run.last("step")
    assert last is not None and last["samples"] == epochs * data.splits["train"]
    return record


@pytest.mark.parametrize("name", CASES)
def test_every_sample_is_used_once_per_epoch(name: str, data: Dataset, tmp_path: Path) -> None:
    run = train(data, tmp_path, epochs=8, **CASES[name])
    record = check(run, data, epochs=8)
    assert validations(run)[-1]["loss"] < 0.35, "half the loss of a model that predicts 0"
    settings = CASES[name].get("asynchronous", {})
    workers = CASES[name].get("workers", 2)
    assert len(run.streams()) == workers + settings.get("masters", 1) + settings.get("groups", 0)
    assert sum(record["staleness"].values()) > 0, "updates reached the first master"
    if name == "staleness":
        assert max(map(int, record["staleness"])) <= 1
    if "quorum" not in name:
        assert record["returned"] == 0


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_one_process_takes_the_same_steps(name: str, data: Dataset, tmp_path: Path) -> None:
    run = train(data, tmp_path, strategy=name, workers=1, asynchronous={"masters": 0})
    record = check(run, data)
    assert list(record["staleness"]) == ["0"]
    assert len(run.streams()) == 1


def test_one_worker_that_sends_gradients_trains_like_a_plain_loop(data: Dataset, tmp_path: Path) -> None:
    plain = clew.train(recipe("chain"), data, output=tmp_path / "plain", **{**SETTINGS, "workers": 1})
    run = train(data, tmp_path, strategy="downpour", workers=1, asynchronous={"masters": 0})
    apart = tmp_path / "apart"
    apart.mkdir()
    other = train(data, apart, strategy="backup", workers=1)
    for key, tensor in weights(plain).items():
        torch.testing.assert_close(weights(run)[key], tensor)
        torch.testing.assert_close(weights(other)[key], tensor)


@pytest.mark.long
@pytest.mark.parametrize(("launcher", "name"), [("mpiexec", "downpour"), ("torchrun", "easgd"), ("mpiexec", "diloco")])
def test_processes_of_a_launcher_train_the_same_way(launcher: str, name: str, data: Dataset, tmp_path: Path) -> None:
    start = {
        "torchrun": [
            str(BIN / "torchrun"),
            "--standalone",
            "--nproc-per-node",
            "3",
            "-m",
            "tests.training.asynchronous.driver",
        ],
        "mpiexec": [str(BIN / "mpiexec"), "-n", "3", sys.executable, "-m", "tests.training.asynchronous.driver"],
    }[launcher]
    command = [*start, str(data.path), str(tmp_path), name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, env={**os.environ})
    assert done.returncode == 0, done.stdout + done.stderr
    check(Run.open(tmp_path / "run"), data)


@pytest.mark.long
def test_a_worker_that_cannot_start_ends_the_training(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(2, 2)\n")
    Table({"features": np.ones((40, 2), np.float32), "labels": np.arange(40) % 2}).save(tmp_path / "events.h5")
    settings = ["--strategy", "easgd", "--set", "train.optimizer={name: sgd, parameters: {lr: 1}}"]
    words = ["-n", "3", str(BIN / "clew"), "train", "--model", "net.py:build", "--train", "events.h5", *settings]
    done = subprocess.run([str(BIN / "mpiexec"), *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "sgd has no 'lr'" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", ["easgd", "two masters", "two masters, rounds", "groups"])
def test_several_processes_resume(name: str, data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        train(data, tmp_path, time_limit_minutes=0.05, **{"strategy": name, **CASES.get(name, {}), "epochs": 2000})
    before = Run.open(tmp_path / "run").last("step")
    assert before is not None
    epochs = before["epoch"] + 60  # workers may be some epochs further than the newest record
    run = resume(tmp_path / "run", time_limit_minutes=10, epochs=epochs)
    assert next(run.records(kind="resume"))["step"] > 0
    last = run.last("step")
    assert run.state == "finished" and last is not None
    assert last["samples"] == epochs * data.splits["train"]


def test_batch_norm_statistics_reach_the_master(data: Dataset, tmp_path: Path) -> None:
    plain = clew.train(recipe("chain", norm=True), data, output=tmp_path / "plain", **{**SETTINGS, "workers": 1})
    run = train(data, tmp_path, norm=True, strategy="downpour", epochs=4)
    for key in ("2.running_mean", "2.running_var"):
        torch.testing.assert_close(weights(run)[key], weights(plain)[key], rtol=0.5, atol=0.2)
        assert not torch.equal(weights(run)[key], torch.full_like(weights(run)[key], float("var" in key)))


@pytest.mark.parametrize("validation", ["shared", "thread", "background"])
def test_the_validated_weights_are_the_saved_ones(validation: str, data: Dataset, tmp_path: Path) -> None:
    run = train(data, tmp_path, strategy="downpour", validation=validation)
    loss = clew.evaluate(run, split="val", weights="last").metrics["loss"].value
    assert loss == pytest.approx(validations(run)[-1]["loss"], rel=1e-5)


@pytest.mark.parametrize("name", ["downpour", "gem", "diloco"])
def test_every_message_is_received(name: str, data: Dataset, tmp_path: Path) -> None:
    record = check(train(data, tmp_path, strategy=name), data)
    messages = record["messages"]
    assert [messages["received"], messages["sent"]] == messages["workers"]


def test_the_mean_of_a_round_weights_workers_by_their_batches() -> None:
    config = TrainConfig(strategy="diloco", asynchronous={"optimizer": {"name": "sgd", "lr": 1.0}})
    master = MasterWeights(torch.zeros(3), 2, config)
    master.apply_mean([torch.tensor([1.0, 2.0, 7.0]), torch.tensor([5.0, 2.0, 3.0])], [3.0, 1.0])
    assert master.values.tolist() == [-2.0, -2.0, 6.0]


def test_a_loss_that_is_not_finite_ends_the_run(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ClewError, match=r"loss is nan at step .* its samples are in"):
        clew.train(recipe("chain", fault="nan"), data, output=tmp_path / "run", strategy="easgd", **SETTINGS)
    assert Run.open(tmp_path / "run").state == "failed"


def test_training_stops_early(data: Dataset, tmp_path: Path) -> None:
    early = {"patience": 2, "min_delta": 10.0}
    run = train(data, tmp_path, strategy="downpour", epochs=60, early_stopping=early)
    assert len(validations(run)) < 60


def test_training_ends_at_its_target_and_after_its_steps(data: Dataset, tmp_path: Path) -> None:
    target = {"metric": "loss", "value": 100.0, "direction": "minimize"}
    (tmp_path / "a").mkdir()
    run = train(data, tmp_path / "a", strategy="downpour", epochs=50, target=target)
    assert len(validations(run)) < 10
    (tmp_path / "b").mkdir()
    run = train(data, tmp_path / "b", strategy="easgd", epochs=50, steps=7)
    record = run.last("workers")
    assert record is not None and record["step"] == 7
    end = run.end()
    assert end is not None and end["message"] == "7 steps are done"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "diloco", "asynchronous": {"overlap": True}}, "overlap can be used only with downpour and easgd"),
        ({"strategy": "backup", "asynchronous": {"groups": 1}}, "groups can be used only with downpour, easgd and gem"),
        ({"strategy": "gem", "asynchronous": {"staleness": 1}}, "staleness can be used only with"),
        (
            {"strategy": "easgd", "workers": 2, "asynchronous": {"masters": 0}},
            "masters 0 can be used only with one worker",
        ),
        ({"strategy": "easgd", "ema": 0.9}, "ema cannot be used with easgd"),
        ({"strategy": "allreduce", "asynchronous": {"masters": 2}}, "asynchronous can be used only with downpour"),
        ({"strategy": "allreduce", "validation": "thread"}, "validation thread can be used only with"),
        ({"strategy": "downpour", "workers": 0}, "workers 0 needs asynchronous.listen"),
    ],
)
def test_settings_that_cannot_be_combined_are_refused(
    settings: dict[str, Any], message: str, data: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(data, tmp_path, **settings)
