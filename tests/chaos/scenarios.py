"""What runs in a storm: a command that is started again until it succeeds, and its result."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from clew import Run
from tests.chaos import faults, network, service

RECIPE = Path(__file__).parent / "recipe.py"
CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]
ONE_THREAD = ("--set", "train.threads=1")
LEFTOVERS = ("*.partial", "*.tmp", "*.clew-part", "*.new")
"""Names of temporary files, which must not stay."""


class Scenario:
    """A command in a folder of its own, on a file system of its own."""

    name = ""
    megabytes = 64
    """Size of the file system."""

    def __init__(self, folder: Path, inputs: Path) -> None:
        """Take the folder, and the folder with events and a dataset (`make_inputs`)."""
        self.folder, self.inputs = folder, inputs

    def faults(self) -> list[faults.Fault]:
        """The faults that it must survive."""
        return [
            faults.Kill(),
            faults.Stop(),
            faults.FullDisk(),
            faults.ReadOnly(),
            faults.SlowDisk(),
            faults.ClockJump(),
            faults.MemoryLimit(),
        ]

    def command(self) -> list[str]:
        """The command that starts the work, or continues it."""
        raise NotImplementedError

    def result(self) -> Any:
        """What must be the same after every storm."""
        raise NotImplementedError

    def is_complete(self) -> bool:
        """Whether the work is done, although the command was killed before it could say so."""
        return False


class Prepare(Scenario):
    """Events to a dataset, by two processes. The bytes of the dataset must be the same."""

    name = "prepare"

    def faults(self) -> list[faults.Fault]:
        return [*super().faults(), faults.FlippedByte("cache/**/*")]

    def command(self) -> list[str]:
        words = ["prepare", str(RECIPE), "--input", str(self.inputs / "events"), "--output", str(self.folder / "data")]
        return [*CLEW, *words, "--workers", "2", "--set", f"prepare.cache={self.folder / 'cache'}"]

    def result(self) -> Any:
        return {path.name: _digest(path) for path in sorted((self.folder / "data").glob("*.h5"))}


class Training(Scenario):
    """A training of three epochs, which is resumed from its checkpoints."""

    words: tuple[str, ...] = ()
    """The options of `clew train`."""

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.folder / "run"

    def command(self) -> list[str]:
        if (self.run / "config.yaml").exists() and list(self.run.glob("checkpoints/*")):
            return [*CLEW, "train", "--resume", str(self.run)]
        shutil.rmtree(self.run, ignore_errors=True)
        words = ["train", str(RECIPE), "--dataset", str(self.inputs / "data"), "--output", str(self.run)]
        return [*CLEW, *words, "--epochs", "3", *ONE_THREAD, *self.words]

    def is_complete(self) -> bool:
        return (self.run / "config.yaml").exists() and Run.open(self.run).state == "finished"


class Train(Training):
    """A deterministic training. The weights must be the same."""

    name = "train"
    words = ("--set", "train.checkpoint_minutes=0.005")

    def faults(self) -> list[faults.Fault]:
        return [*super().faults(), faults.FlippedByte("run/checkpoints/**/*")]

    def result(self) -> Any:
        run = Run.open(self.run)
        return run.state, _digest(run.path / "checkpoints" / "last.safetensors")


class Asynchronous(Training):
    """Downpour with two workers. Every batch must be done once, and every epoch be validated."""

    name = "downpour"
    words = (
        *("--strategy", "downpour", "--workers", "2", "--set", "train.checkpoint_minutes=0.01"),
        *("--set", "train.asynchronous.lease_seconds=10"),
    )

    def result(self) -> Any:
        run = Run.open(self.run)
        last = run.last("step") or {}
        epochs = sorted({record["epoch"] for record in run.records(kind="validation")})
        return run.state, last.get("samples"), epochs


class AcrossHosts(Asynchronous):
    """Downpour with a master and two workers, each on a virtual host of its own."""

    name = "downpour, hosts"
    words = (
        *("--strategy", "downpour", "--workers", "0", "--set", "train.checkpoint_minutes=0.01"),
        *("--set", "train.asynchronous.lease_seconds=10"),
    )

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.network", str(self.folder), *super().command()]

    def faults(self) -> list[faults.Fault]:
        return [network.DroppedLink(), network.ThrottledLink()]


class Study(Scenario):
    """A study of six trials. It must have exactly these, each ended (a full disk may fail one)."""

    name = "study"

    def command(self) -> list[str]:
        study = self.folder / "study"
        if (study / "study.json").exists():
            return [*CLEW, "tune", "run", "--resume", str(study)]
        shutil.rmtree(study, ignore_errors=True)
        settings = {
            "recipe": str(RECIPE),
            "train": {"dataset": str(self.inputs / "data"), "epochs": 1, "threads": 1},
            "tune": {"trials": 6, "parallel": 2, "space": {"train.optimizer.lr": {"log": [1e-4, 1e-1]}}},
        }
        (self.inputs / "study.yaml").write_text(yaml.safe_dump(settings))
        return [*CLEW, "tune", "run", str(self.inputs / "study.yaml"), "--output", str(study)]

    def result(self) -> Any:
        from clew.tuning.study import Study as Opened

        trials = Opened.open(self.folder / "study").trials()
        return sorted((trial.number, trial.state in ("complete", "failed")) for trial in trials)


class Service(Scenario):
    """A server with an agent. Every job must be done once, and every point be there once."""

    name = "service"

    def command(self) -> list[str]:
        if not (self.inputs / "trained").exists():
            make_run(self.inputs)
        if not (self.folder / "run").exists():
            shutil.copytree(self.inputs / "trained", self.folder / "copied")
            (self.folder / "copied").rename(self.folder / "run")
        return [sys.executable, "-m", "tests.chaos.service", str(self.folder)]

    def faults(self) -> list[faults.Fault]:
        return [faults.Kill(), faults.Stop(), faults.SlowDisk(), faults.ClockJump()]

    def result(self) -> Any:
        return service.result(self.folder)


class ServiceAcrossHosts(Service):
    """The same, with the server, the user and the agent on virtual hosts of their own."""

    name = "service, hosts"

    def command(self) -> list[str]:
        return [*super().command(), "--hosts"]

    def faults(self) -> list[faults.Fault]:
        return [network.DroppedLink(), network.ThrottledLink()]


def make_inputs(folder: Path) -> None:
    """Generate events, and a dataset of them."""
    events = ["data", "generate", str(RECIPE), "--events", "8000", "--output", str(folder / "events")]
    prepare = ["prepare", str(RECIPE), "--input", str(folder / "events"), "--output", str(folder / "data")]
    _clew(*events)
    _clew(*prepare, "--workers", "1", "--set", f"prepare.cache={folder / 'cache'}")


def make_run(folder: Path) -> None:
    """Train a run on the dataset."""
    words = ["train", str(RECIPE), "--dataset", str(folder / "data"), "--output", str(folder / "trained")]
    _clew(*words, "--epochs", "1", "--set", "slow_step=0", *ONE_THREAD)


def _clew(*words: str) -> None:
    subprocess.run([*CLEW, *words], check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
