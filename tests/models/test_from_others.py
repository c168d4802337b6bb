"""`clew init --from-nnlo` and `--from-ariadne`: what they write works, and bad input is one line."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

import clew
from tests.cli import SCRIPT, done
from tests.cli import clew as command

PREPARE = r"""
preprocess.target_processor = @GraphNet_Processor
preprocess.output_dir = 'output/graphs'
parse.input_file_mask = 'events/*.txt'
parse.csv_params = {
    "sep": '\s+',   # blanks
    "names": ['event', 'x', 'y', 'z', 'station', 'track']
}
GraphNet_Processor.transforms = [
    @DropSpinningTracks(),
    @DropShort(),
    @ToCylindrical(),
    @ConstraintsNormalize()
]
GraphNet_Processor.get_pd_line_graph = {
    'restrictions_0': (-0.07, 0.07),
    'restrictions_1': (-0.32, 0.32)
}
GraphNet_Processor.apply_edge_restriction = {'edge_restriction': 0.16}
DropShort.num_stations = 3
ConstraintsNormalize.columns = ('r', 'phi', 'z')
ConstraintsNormalize.constraints = {'r': [80., 167.], 'phi': [-3.15, 3.15], 'z': [-423.5, 423.5]}
"""
TRAIN = """
experiment.model = @GraphNet_v1
experiment.criterion = @GraphNetWeightedBCE
experiment.metrics = [@ariadne.metrics.precision, @ariadne.metrics.recall]
experiment.optimizer = @Adam # or AdamW
experiment.data_loader = @GraphDataLoader
experiment.epochs = 2
experiment.fp16_training = False
experiment.random_seed = 42
experiment.num_gpus = 1
GraphDataLoader.batch_size = 4
GraphNet_v1.input_dim = 3
GraphNet_v1.hidden_dim = 16
GraphNet_v1.n_iters = 1
GraphNetWeightedBCE.real_weight = 20
GraphNetWeightedBCE.fake_weight = 1
Adam.lr = 0.002
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_gin_files_become_settings_that_train() -> None:
    Path("prepare.cfg").write_text(PREPARE)
    Path("train.cfg").write_text(TRAIN)
    out = done("init", "graphs", "--from-ariadne", "prepare.cfg", "train.cfg")
    assert "different: experiment.num_gpus = 1: no counterpart" in out
    assert "clew prepare graphs.yaml --input 'events/*.txt'" in out
    settings = yaml.safe_load(Path("graphs.yaml").read_text())
    assert settings["recipe"] == "tracking"
    assert settings["segments"] == {"phi_cut": 0.2205, "z_cut": 135.52, "bend_cut": 0.16}, "clew's defaults for BES-III"
    assert settings["detector"] == {"r_range": [80.0, 167.0], "phi_max": 3.15, "z_max": 423.5}
    assert settings["model"] == {"hidden": 16, "iterations": 1, "positive_weight": 20, "negative_weight": 1}
    assert settings["transforms"] == [{"kind": "drop_spinning"}, {"kind": "drop_short", "stations": 3}]
    done("data", "generate", "tracking", "--events", "40", "--output", "events")
    done("prepare", "graphs.yaml", "--input", "events", "--output", "dataset", "--workers", "1")
    done("train", "graphs.yaml", "--dataset", "dataset", "--output", "run")
    config = clew.Run.open("run").config().data["train"]
    assert (config["epochs"], config["batch_size"], config["seed"]) == (2, 4, 42)
    assert config["optimizer"]["name"] == "adam" and config["optimizer"]["lr"] == 0.002


def test_tracknet_has_its_own_recipe() -> None:
    text = TRAIN.replace("GraphNet_v1", "TrackNETv2").replace("GraphDataLoader", "TrackNetV2DataLoader")
    Path("train.cfg").write_text(text + "TrackNetLoss.alpha = 0.9\nTrackNetV2DataLoader.valid_size = 0.3\n")
    done("init", "--from-ariadne", "train.cfg")
    settings = yaml.safe_load(Path("train.yaml").read_text())
    assert settings["recipe"] == "tracknet" and settings["model"]["alpha"] == 0.9
    assert settings["prepare"] == {"split": {"train": 0.7, "val": 0.3}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("experiment.model = @PointNet\n", "clew has no counterpart of Ariadne's PointNet"),
        ("experiment.epochs = 3\n", "neither experiment.model nor preprocess.target_processor is set"),
        ("experiment.model @GraphNet_v1\n", "bad.cfg:1: expected 'name = value'"),
        ("experiment.epochs = open('x')\n", "bad.cfg:1: 'open('x')' is not a value of gin"),
        ("a.b = [1,\n2\n", "bad.cfg:1: a bracket is not closed"),
        (PREPARE + "experiment.model = @TrackNETv2\n", "are different models"),
    ],
)
def test_bad_gin_files_are_one_line(text: str, message: str) -> None:
    Path("bad.cfg").write_text(text)
    outcome = command("init", "--from-ariadne", "bad.cfg")
    assert outcome.code == 2 and message in outcome.err and outcome.err.count("\n") == 1
    assert not Path("bad.yaml").exists()


def words_of(script: str) -> list[str]:
    """The words of the command in a script."""
    return shlex.split(script.replace("\\\n", " "), comments=True)


NNLO = (
    "mpirun -np 3 python TrainingDriver.py --backend torch --model net.py --train_data train.txt --val_data val.txt "
    "--features-name images --labels-name labels --loss categorical_crossentropy --batch 20 --epochs 2 "
    "--worker-optimizer sgd --worker-optimizer-params \"{'lr': 0.05, 'momentum': 0.9}\" --synchronous "
    "--thread_validation --timeline --monitor --checkpoint nets --early-stopping 5 --target-metric val_acc,>,0.999"
)


def write_nnlo_files() -> None:
    """Write a network, and lists of files as NNLO reads them."""
    Path("net.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))\n"
    )
    random = np.random.default_rng(1)
    for name in ("train", "val"):
        images = random.normal(size=(60, 4, 4)).astype(np.float32)
        with h5py.File(f"{name}.h5", "w") as file:
            file["images"] = images
            file["labels"] = np.eye(2, dtype=np.float32)[(images.sum(axis=(1, 2)) > 0).astype(int)]
        Path(f"{name}.txt").write_text(f"{name}.h5\n")


def run_script(name: str) -> None:
    """Run a script that `clew init` wrote."""
    environment = {"PATH": f"{SCRIPT.parent}:/usr/bin:/bin", "HOME": str(Path.cwd())}
    result = subprocess.run(["sh", name], capture_output=True, text=True, timeout=220, env=environment)
    assert result.returncode == 0, result.stderr


@pytest.mark.long
def test_a_command_of_nnlo_becomes_a_script_that_trains() -> None:
    write_nnlo_files()
    Path("job.sh").write_text(f"#!/bin/sh\nmodule load mpi\n{NNLO}\n")
    out = done("init", "first", "--from-nnlo", "job.sh")
    assert "different: --checkpoint" in out and "sh first.sh" in out
    words = words_of(Path("first.sh").read_text())
    assert words[:5] == ["mpiexec", "-n", "2", "clew", "train"]
    for each in (
        "train.batch_size=20",
        "train.optimizer.name=sgd",
        "train.optimizer.lr=0.05",
        "train.optimizer.parameters.momentum=0.9",
        "train.validation=background",
        "train.early_stopping={metric: loss, patience: 5}",
        "train.target={metric: accuracy, value: 0.999}",
    ):
        assert each in words
    run_script("first.sh")
    run = clew.Run.open("runs/train").config().data["train"]
    assert run["optimizer"]["parameters"] == {"momentum": 0.9} and run["epochs"] == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--easgd --elastic-force 0.8 --elastic-lr 0.5", ["--strategy", "easgd", "train.asynchronous.elasticity=0.8"]),
        ("--mode gem --gem-kappa 2 --gem-lr 0.01", ["--strategy", "gem", "train.asynchronous.kappa=2"]),
        ("--optimizer adam --sync-every 4", ["--strategy", "downpour", "train.asynchronous.sync_every=4"]),
        ("--masters 2", ["train.asynchronous.masters=2", "train.optimizer.name=adam"]),
    ],
)
def test_algorithms_of_mpi_learn_become_strategies(options: str, expected: list[str]) -> None:
    done("init", "--from-nnlo", f"mpirun -np 4 ./MPIDriver.py cnn.json a.txt b.txt {options}")
    words = words_of(Path("cnn.sh").read_text())
    assert words[:5] == ["mpiexec", "-n", "4", "clew", "train"] and set(expected) <= set(words)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "strategy"),
    [("--easgd --elastic-force 0.5 --elastic-lr 0.5", "easgd"), ("--mode gem --gem-kappa 2 --gem-lr 0.02", "gem")],
)
def test_an_asynchronous_command_of_nnlo_trains_with_a_master(options: str, strategy: str) -> None:
    write_nnlo_files()
    command_line = NNLO.replace("--synchronous", options).replace("--epochs 2", "--epochs 10")
    done("init", "first", "--from-nnlo", command_line)
    run_script("first.sh")
    run = clew.Run.open("runs/train")
    assert run.config().data["train"]["strategy"] == strategy
    validation = run.last("validation")
    assert run.state == "finished" and validation is not None
    assert validation["metrics"]["loss"] < 0.6, "guessing gives 0.69"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("python train.py --epochs 3", "no command with TrainingDriver.py or MPIDriver.py"),
        ("./MPIDriver.py cnn.json a.txt b.txt --epoch 3", "have no option --epoch; did you mean '--epochs'"),
        ("./MPIDriver.py cnn.json", "names no model or no list of files"),
        ("./MPIDriver.py a.json b.txt c.txt --mode hogwild", "NNLO has no mode 'hogwild'"),
        ("mpirun -np two ./MPIDriver.py a.json b.txt c.txt", "-np two is not a number of processes"),
        ("./MPIDriver.py a.json b.txt c.txt --worker-optimizer-params lr", "not a dictionary"),
        ("./MPIDriver.py a.json b.txt c.txt --early-stopping soon", "expected a number, or metric,<,number"),
        ("./MPIDriver.py a.json 'b.txt", "cannot be read"),
    ],
)
def test_bad_commands_are_one_line(text: str, message: str) -> None:
    outcome = command("init", "--from-nnlo", text)
    assert outcome.code == 2 and message in outcome.err and outcome.err.count("\n") == 1
    assert not list(Path().glob("*.sh"))
