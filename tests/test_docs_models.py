"""The commands of docs/howto/from-nnlo.md run, in a folder like those of its readers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from clew import Run
from tests.models.keras_models import cnn, images, saved
from tests.test_docs import ROOT, _blocks
from tests.training import losses, validations

PAGE = ROOT / "docs" / "howto" / "from-nnlo.md"
NET = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
"""
JOB = (
    "mpirun -np 3 ./MPIDriver.py cnn.json train_list.txt val_list.txt --features-name images --labels-name labels "
    "--loss categorical_crossentropy --epochs 1"
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A Keras architecture, a torch model, HDF5 files with one column per class, and lists of them."""
    saved(cnn(), tmp_path / "cnn.json")
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\nmodule load mpi\n{JOB}\n")
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "data").mkdir()
    for kind, files in {"train": 2, "val": 1}.items():
        names = [f"data/{kind}_{number}.h5" for number in range(files)]
        for number, name in enumerate(names):
            x, y = images(300, number + 10 * (kind == "val"))
            with h5py.File(tmp_path / name, "w") as file:
                file["images"], file["labels"] = x, np.eye(3, dtype=np.float32)[y]
        (tmp_path / f"{kind}_list.txt").write_text("\n".join(names) + "\n")
    return tmp_path


@pytest.mark.long
@pytest.mark.timeout(240)
def test_every_command_runs(place: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    lines = [line for block in _blocks(PAGE, "sh") for line in block.splitlines() if line.strip()]
    assert sum("clew train" in line for line in lines) >= 2
    for line in lines:
        done = subprocess.run(
            ["bash", "-c", line], cwd=place, env=environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    for name in ("first", "second"):
        run = Run.open(place / "runs" / name)
        assert run.state == "finished" and len(run.streams()) == 2
        assert {"loss", "accuracy"} <= validations(run)[-1].keys()
        assert losses(run)[-1]["loss"] < losses(run)[0]["loss"]
    third = Run.open(place / "runs" / "third")
    assert third.state == "finished" and len(third.streams()) == 3
    record = third.last("workers")
    assert record is not None and len(record["workers"]) == 2


def test_every_flag_of_the_originals_is_on_the_page() -> None:
    """Options as the drivers of NNLO declare them."""
    flags = (
        "model train_data val_data features-name labels-name batch epochs loss early-stopping target-metric optimizer "
        "worker-optimizer worker-optimizer-params sync-every mode synchronous master-gpu max-gpus n-masters "
        "n-processes gem-lr gem-momentum gem-kappa elastic-force elastic-lr elastic-momentum preload-data cache-data "
        "copy-command timeline monitor verbose backend thread_validation trial-name log-file log-level output restore "
        "checkpoint checkpoint-interval tf profile masters processes easgd"
    )
    text = PAGE.read_text().split("## Flag by flag")[1]
    assert [flag for flag in flags.split() if f"--{flag}" not in text] == []
