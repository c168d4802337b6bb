"""What pages presume: files and folders with the names that they use, made in the working folder of a test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from clew import Dataset, Ragged, Run, Table
from clew.data.writers import find as find_writer
from tests.cli import done
from tests.models.keras_models import cnn, images, saved
from tests.pages.commands import ROOT, blocks
from tests.recipes.jets import jets

NET = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, features):
        return self.layers(features)
"""
STUDY = {
    "recipe": "tracking",
    "model": {"hidden": 8},
    "train": {"dataset": "dataset", "epochs": 1},
    "tune": {"space": {"train.optimizer.lr": {"log": [1e-4, 1e-2]}}, "objective": "val/loss", "trials": 2},
}


def events(request: pytest.FixtureRequest) -> None:
    """The folder `events`: text files of the recipe tracking."""
    shutil.copytree(request.getfixturevalue("events"), "events")


def years(request: pytest.FixtureRequest) -> None:
    """The same events in the folders `2023` and `2024`."""
    for folder, file in zip(("2023", "2024"), sorted(request.getfixturevalue("events").iterdir()), strict=True):
        Path(folder).mkdir()
        shutil.copy(file, folder)


def real_events(request: pytest.FixtureRequest) -> None:
    """`real_events.txt`, a file of these events."""
    shutil.copy(sorted(request.getfixturevalue("events").iterdir())[0], "real_events.txt")


def _copy_dataset(request: pytest.FixtureRequest, to: str) -> None:
    prepared: Dataset = request.getfixturevalue("dataset")
    shutil.copytree(prepared.path, to)


def _copy_run(request: pytest.FixtureRequest, *names: str) -> None:
    trained: Run = request.getfixturevalue("run")
    for name in names:
        shutil.copytree(trained.path, Path("runs") / name)


def dataset(request: pytest.FixtureRequest) -> None:
    """The folder `dataset`, made of these events."""
    _copy_dataset(request, "dataset")


def other_dataset(request: pytest.FixtureRequest) -> None:
    """The same dataset as `other_dataset`."""
    _copy_dataset(request, "other_dataset")


def two_runs(request: pytest.FixtureRequest) -> None:
    """`runs/tracking-001` and `runs/tracking-002`, trained on this dataset."""
    _copy_run(request, "tracking-001", "tracking-002")


def runs_a_and_b(request: pytest.FixtureRequest) -> None:
    """`runs/a` and `runs/b`, trained on this dataset."""
    _copy_run(request, "a", "b")


def two_trainings(request: pytest.FixtureRequest) -> None:
    """The same names, trained by the command line, which saves what it prints."""
    dataset(request)
    for _ in range(2):
        done("train", "tracking", "--dataset", "dataset", "--epochs", "1", "--set", "model.hidden=8")


def data(request: pytest.FixtureRequest) -> None:
    """The dataset as `data`."""
    _copy_dataset(request, "data")


def bucket(request: pytest.FixtureRequest) -> None:
    """A folder instead of a bucket of S3, with `events` and `dataset`."""
    _copy_dataset(request, "bucket/dataset")
    shutil.copytree(request.getfixturevalue("events"), "bucket/events")


def own_script(_: pytest.FixtureRequest) -> None:
    """`train.py`, the script of the page on jobs."""
    Path("train.py").write_text(blocks("docs/howto/jobs.md", "python")[0])


def panda(_: pytest.FixtureRequest) -> None:
    """The client of PanDA, which need not be installed."""
    pytest.importorskip("pandaclient")


def study_file(_: pytest.FixtureRequest) -> None:
    """`my.yaml`, a study of the recipe tracking."""
    Path("my.yaml").write_text(json.dumps(STUDY))


def study_file_too(_: pytest.FixtureRequest) -> None:
    """The same as `study.yaml`."""
    Path("study.yaml").write_text(json.dumps(STUDY))


def net(_: pytest.FixtureRequest) -> None:
    """`net.py` with two models, and HDF5 files for them."""
    Path("net.py").write_text(NET)
    for seed, name in enumerate(("a1.h5", "a2.h5", "b1.h5")):
        x = np.random.default_rng(seed).normal(size=(100, 3)).astype(np.float32)
        Table({"X": x, "Y": (x.sum(axis=1) > 0).astype(np.int64)}).save(name)


def program(_: pytest.FixtureRequest) -> None:
    """`net.pt2`, an exported program for the same files."""
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    torch.export.save(
        torch.export.export(model, (torch.zeros(4, 3),), dynamic_shapes=({0: torch.export.Dim("batch")},)), "net.pt2"
    )


def root_files(_: pytest.FixtureRequest) -> None:
    """`jets1.root` and `jets2.root` with columns of single jets."""
    for number in (1, 2):
        random = np.random.default_rng(number)
        signal = random.integers(0, 2, 200)
        columns = {
            "pt": random.exponential(30, 200) + 15 + 20 * signal,
            "eta": random.normal(0, 1, 200),
            "phi": random.uniform(-3, 3, 200),
            "mass": random.normal(90, 10, 200),
            "mc_weight": random.uniform(0.5, 1.5, 200),
            "sf": np.ones(200),
            "is_top": signal,
            "signal": signal,
        }
        with find_writer("jets.root")(Path(f"jets{number}.root")) as writer:
            writer.append(Table(columns))


def keras_files(_: pytest.FixtureRequest) -> None:
    """`cnn.keras`, `cnn.json` and `images.h5`."""
    for name in ("cnn.keras", "cnn.json"):
        saved(cnn(), Path(name))
    with h5py.File("images.h5", "w") as file:
        file["images"], file["kind"] = images(200)


def keras_run(request: pytest.FixtureRequest) -> None:
    """`runs/cnn-001`, the run of a Keras model."""
    keras_files(request)
    words = "--features images --labels kind --epochs 1 --output runs/cnn-001"
    done("train", "--model", "cnn.keras", "--train", "images.h5", *words.split())


def tagger_run(_: pytest.FixtureRequest) -> None:
    """`runs/top_tagger-001`, the run of the recipe in `examples`."""
    shutil.copy(ROOT / "examples" / "top_tagger.py", "top_tagger.py")
    random = np.random.default_rng(0)
    top = random.integers(0, 2, 300)
    jets = [list(random.exponential(20 + 20 * each, random.integers(1, 6))) for each in top]
    Table({"pt": Ragged.from_lists(jets), "top": top}).save("jets.h5")
    done("prepare", "top_tagger.py", "--input", "jets.h5", "--output", "jets", "--workers", "1")
    done("train", "top_tagger.py", "--dataset", "jets", "--epochs", "1", "--output", "runs/top_tagger-001")


def jet_dataset(_: pytest.FixtureRequest) -> None:
    """The folder `jets`, a dataset of the recipe jetfeatures."""
    jets(200).save("jets.h5")
    done("prepare", "jetfeatures", "--input", "jets.h5", "--output", "jets", "--workers", "1")


SCENES: dict[str, Callable[[pytest.FixtureRequest], None]] = {
    each.__name__: each
    for each in (
        bucket,
        data,
        dataset,
        events,
        jet_dataset,
        keras_files,
        keras_run,
        net,
        other_dataset,
        own_script,
        panda,
        program,
        real_events,
        root_files,
        runs_a_and_b,
        study_file,
        study_file_too,
        tagger_run,
        two_runs,
        two_trainings,
        years,
    )
}
