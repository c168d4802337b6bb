"""Work from elsewhere under every verb: models of torch and Keras, configurations of weaver, NNLO and Ariadne, frames.

The first training of each is what a newcomer types. Everything after it starts from that run.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars
import pyarrow
import pytest
import torch
import yaml

import clew
from clew import Run, Table
from tests.cli import SCRIPT, done
from tests.cli import clew as command
from tests.models.keras_models import cnn, images, saved
from tests.models.test_estimators import events
from tests.models.test_from_others import NNLO, PREPARE, TRAIN
from tests.models.weaver import TOP, write_jets
from tests.test_docs import ROOT, _blocks
from tests.training import losses, validations, weights

NET = """from torch import nn

def build(hidden=8):
    return nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 2))
"""
IMAGES = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))\n"
SETTINGS = ("--set", "train.threads=1", "--set", "train.log_every=1", "--set", "train.seed=3")

pytestmark = pytest.mark.timeout(300)


def _torch() -> str:
    with h5py.File("events.h5", "w") as file:
        for name, values in events(300).items():
            file[name] = values
    Path("net.py").write_text(NET)
    columns = ("--train", "events.h5", "--features", "pt,eta,mass", "--labels", "signal")
    done("train", "--model", "net.py:build", *columns, "--epochs", "3", *SETTINGS, "--output", "run")
    return "events.h5"


def _keras() -> str:
    x, y = images(200)
    Table({"X": x, "Y": y}).save("images.h5")
    saved(cnn(), Path("cnn.keras"))
    columns = ("--train", "images.h5", "--features", "X", "--labels", "Y")
    done("train", "--model", "cnn.keras", *columns, "--epochs", "2", *SETTINGS, "--output", "run")
    return "images.h5"


def _weaver() -> str:
    Path("top.yaml").write_text(TOP)
    Path("network.py").write_text(_blocks(ROOT / "docs" / "howto" / "from-weaver.md", "python")[0])
    write_jets(Path("jets.root"), 200)
    done("init", "--from-weaver", "top.yaml", "network.py")
    done("prepare", "top.py", "--input", "jets.root", "--output", "dataset", "--workers", "1")
    more = ("--epochs", "2", "--batch-size", "32", *SETTINGS)
    done("train", "top.py", "--dataset", "dataset", *more, "--output", "run")
    return "jets.root"


def _nnlo() -> str:
    Path("net.py").write_text(IMAGES)
    random = np.random.default_rng(1)
    for name in ("train", "val"):
        with h5py.File(f"{name}.h5", "w") as file:
            file["images"] = random.normal(size=(60, 4, 4)).astype(np.float32)
            file["labels"] = np.eye(2, dtype=np.float32)[random.integers(0, 2, 60)]
        Path(f"{name}.txt").write_text(f"{name}.h5\n")
    done("init", "first", "--from-nnlo", NNLO.replace("--thread_validation", ""))
    one_rank, count = re.subn(
        r"mpiexec[\s\\]+-n 2 clew train", f"clew train {' '.join(SETTINGS)}", Path("first.sh").read_text()
    )
    assert count == 1, one_rank
    Path("first.sh").write_text(one_rank)
    environment = {"PATH": f"{SCRIPT.parent}:/usr/bin:/bin", "HOME": str(Path.cwd())}
    result = subprocess.run(["sh", "first.sh"], capture_output=True, text=True, timeout=200, env=environment)
    assert result.returncode == 0, result.stderr
    Path("runs/train").rename("run")
    return "val.h5"


def _ariadne() -> str:
    Path("prepare.cfg").write_text(PREPARE)
    Path("train.cfg").write_text(TRAIN)
    done("init", "graphs", "--from-ariadne", "prepare.cfg", "train.cfg")
    done("data", "generate", "tracking", "--events", "40", "--output", "events")
    done("prepare", "graphs.yaml", "--input", "events", "--output", "dataset", "--workers", "1")
    done("train", "graphs.yaml", "--dataset", "dataset", *SETTINGS, "--output", "run")
    return "events"


ORIGINS: dict[str, Callable[[], str]] = {
    "torch": _torch,
    "keras": _keras,
    "weaver": _weaver,
    "nnlo": _nnlo,
    "ariadne": _ariadne,
}
CONVERTED = ("weaver", "nnlo", "ariadne")
"""Whose strategies and resumption have no other test. torch and Keras: tests/training, tests/models/test_keras.py."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """Returns the folder with the first run of an origin, and its raw events. Each is trained once."""
    made: dict[str, tuple[Path, str]] = {}

    def get(origin: str) -> tuple[Path, str]:
        if origin not in made:
            folder = tmp_path_factory.mktemp(origin)
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                made[origin] = folder, ORIGINS[origin]()
        return made[origin]

    return get


@pytest.fixture
def origin(
    request: pytest.FixtureRequest, trained: Callable[[str], tuple[Path, str]], monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, str]:
    """The folder of an origin, which is the working folder, and its raw events."""
    folder, source = trained(request.param)
    monkeypatch.chdir(folder)
    return folder, source


every = pytest.mark.parametrize("origin", ORIGINS, indirect=True)
converted = pytest.mark.parametrize("origin", CONVERTED, indirect=True)


@every
def test_evaluate_and_predict(origin: tuple[Path, str]) -> None:
    done("evaluate", "run", "--split", "val")
    assert Run.open("run").evaluations()["val"]["metrics"]["loss"]["value"] > 0
    assert command("predict", "run", "--input", origin[1], "--output", "rows.h5", "--replace").code == 0
    assert len(Table.load("rows.h5")) > 30


@pytest.mark.slow
@every
def test_export(origin: tuple[Path, str], tmp_path: Path) -> None:
    done("export", "run", "--to", "onnx", "--output", tmp_path / "model.onnx")
    data = Run.open("run").config().data["train"]["dataset"]
    rows = [clew.predict(each, data=data, split="val") for each in ("run", tmp_path / "model.onnx")]
    numbers = [name for name in rows[0] if isinstance(rows[0][name], np.ndarray)]
    for name in numbers:
        np.testing.assert_allclose(rows[0].fixed(name), rows[1].fixed(name), atol=1e-4)
    assert len(rows[0]) == len(rows[1]) > 0


@every
def test_tune(origin: tuple[Path, str], tmp_path: Path) -> None:
    settings = Run.open("run").config().data
    settings["train"] |= {"epochs": 1, "workers": 1}
    settings["tune"] = {"trials": 2, "space": {"train.optimizer.lr": {"log": [1e-3, 1e-1]}}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(settings))
    assert command("tune", "run", tmp_path / "study.yaml", "--output", tmp_path / "study").code == 0
    runs = [Run.open(path) for path in sorted((tmp_path / "study" / "trials").iterdir())]
    assert [run.state for run in runs] == ["finished", "finished"]
    assert len({run.config().data["train"]["optimizer"]["lr"] for run in runs}) == 2


@converted
def test_two_ranks_give_the_result_of_one(origin: tuple[Path, str], tmp_path: Path) -> None:
    done("train", "run", "--workers", "2", "--output", tmp_path / "two")
    for value, expected in zip(losses(Run.open(tmp_path / "two")), losses(Run.open("run")), strict=True):
        assert value == pytest.approx(expected, rel=1e-3)


@converted
def test_a_master_and_workers_train_it(origin: tuple[Path, str], tmp_path: Path) -> None:
    done("train", "run", "--workers", "2", "--strategy", "downpour", "--output", tmp_path / "run")
    assert Run.open(tmp_path / "run").state == "finished" and validations(Run.open(tmp_path / "run"))


@converted
def test_a_stopped_run_ends_with_the_same_weights(origin: tuple[Path, str], tmp_path: Path) -> None:
    output = tmp_path / "half"
    stopped = command("train", "run", "--set", "train.time_limit_minutes=0.0001", "--output", output)
    assert stopped.code == 75 and len(losses(Run.open(output))) < len(losses(Run.open("run")))
    done("train", "--resume", output, "--time-limit", "10m")
    for name, tensor in weights(Run.open("run")).items():
        assert torch.equal(weights(Run.open(output))[name], tensor)


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "awkward", "dictionary"])
def test_frames_and_arrays_are_trained_on_and_predicted(kind: str, tmp_path: Path) -> None:
    names = ("pt", "eta", "mass", "signal")
    columns = {name: values for name, values in events(300).items() if name in names}
    table = Table(columns)
    kinds: dict[str, Callable[[], Any]] = {
        "pandas": table.to_pandas,
        "polars": lambda: polars.DataFrame(columns),
        "arrow": lambda: pyarrow.table(columns),
        "awkward": table.to_awkward,
        "dictionary": lambda: columns,
    }
    data = kinds[kind]()
    (tmp_path / "net.py").write_text(NET)
    chosen: dict[str, Any] = {"features": "pt,eta,mass", "labels": "signal", "epochs": 1, "seed": 3, "threads": 1}
    build = f"{tmp_path}/net.py:build"
    run = clew.train(build, data, output=tmp_path / "run", **chosen)
    same = clew.train(build, table, output=tmp_path / "same", **chosen)
    assert validations(run) == validations(same)
    assert clew.evaluate(run, split="val").metrics["accuracy"].value >= 0
    assert len(clew.predict(run, data)) == (1 if kind == "dictionary" else 300)
