"""Write the frozen files of this version of clew to `tests/frozen/VERSION`. They are never written again.

    python -m tests.frozen.make

Run it once before a release, and again for a version with a new format. Commit the folder.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import yaml

from clew import Client, Ragged, Run, Table, __version__
from clew.client.job import Submission
from clew.runs.push import Pusher
from tests.server.conftest import Live

HERE = Path(__file__).parent
_CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]
PARTS = {
    "dataset": ("recipe.py", "events.h5", "dataset"),
    "run": ("run",),
    "models": ("model.onnx", "stored"),
    "study": ("study",),
    "service": ("service",),
}
"""What each archive holds."""
PLACE = Path("/tmp/clew-frozen")
"""Files of a run name the place of its dataset."""
_MACHINE = {"host": "frozen", "cpu": "frozen", "platform": "frozen", "commit": "", "cores": 1, "memory_gb": 1.0}
"""What environment.json says of the machine."""
_STUDY = {
    "recipe": "recipe.py",
    "train": {"dataset": "dataset", "epochs": 1, "threads": 1},
    "tune": {
        "trials": 2,
        "parallel": 1,
        "objective": "val/loss",
        "sampler": {"name": "random", "seed": 1},
        "space": {"train.optimizer.lr": {"log": [1e-3, 1e-1]}, "hidden": {"uniform": [2, 6], "integer": True}},
    },
}


def make(folder: Path) -> None:
    """Write all files to an empty folder, with paths relative to it."""
    shutil.copy(HERE / "recipe.py", folder)
    _events(60, seed=1).save(folder / "events.h5")
    _clew(folder, "prepare", "recipe.py", "--input", "events.h5", "--output", "dataset", "--workers", "1")
    train = ["train", "recipe.py", "--dataset", "dataset", "--output", "run", "--epochs", "2", "--batch-size", "16"]
    _clew(folder, *train, "--set", "train.threads=1", "--set", "train.keep_checkpoints=1")
    _clew(folder, "evaluate", "run")
    _clew(folder, "export", "run", "--to", "onnx", "--output", "model.onnx")
    _clew(folder, "model", "put", "run", "stored", "--name", "line", "--what", "plots")
    (folder / "study.yaml").write_text(yaml.safe_dump(_STUDY))
    _clew(folder, "tune", "run", "study.yaml", "--output", "study")
    _make_service(folder)


def _events(count: int, seed: int) -> Table:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 3)).astype(np.float32)
    hits = Ragged.from_lists([list(random.normal(size=length)) for length in random.integers(0, 4, count)])
    y = (x @ np.array([1.0, -2.0, 0.5])).astype(np.float32)
    return Table({"x": x, "hits": hits, "y": y})


def _make_service(folder: Path) -> None:
    """Write the folder of a server with a run, a job and an administrator."""
    live = Live(folder / "service").start()
    with Client(live.url, live.token) as client:
        Pusher(Run.open(folder / "run"), client.connection).push()
        client.jobs.submit(Submission(name="waits", spec={"recipe": "none", "code": "pass"}))
    assert live.stop() == 0
    for path in (folder / "service.log", folder / "service" / "clew.sqlite.lock"):
        path.unlink()
    (folder / "run" / "push.json").unlink(missing_ok=True)


def _forget_machine(folder: Path) -> None:
    """Remove what names this machine, and what is large or not read: reports with their JavaScript, logs."""
    for path in (*folder.rglob("report.html"), *folder.rglob("*.log"), *folder.rglob("*.lock")):
        if path.name != "journal.log":
            path.unlink()
    for path in folder.rglob("environment.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), **_MACHINE}, indent=2) + "\n")
    for path in folder.rglob("*.jsonl"):
        path.write_text(path.read_text().replace(json.dumps(socket.gethostname()), '"frozen"'))


def _clew(folder: Path, *words: str) -> None:
    with tempfile.TemporaryDirectory() as own:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CLEW_CONFIG": own, "CLEW_CACHE": own}
        done = subprocess.run([*_CLEW, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"clew {' '.join(words)}\n{done.stdout}{done.stderr}"
    _forget_machine(folder)


def pack(folder: Path, target: Path) -> None:
    """Write each part as an archive: git has no empty folders, and tools must not format or check frozen code."""
    target.mkdir(parents=True)
    for name, paths in PARTS.items():
        with (
            gzip.GzipFile(target / f"{name}.tar.gz", "wb", mtime=0) as file,
            tarfile.open(fileobj=file, mode="w") as tar,
        ):
            for path in paths:
                tar.add(folder / path, arcname=path, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(version: str, folder: Path) -> None:
    """Write the frozen files of a version to a folder."""
    for archive in sorted((HERE / version).glob("*.tar.gz")):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")


def main() -> None:
    """Make the files in a folder whose path says nothing of this machine, and move them here."""
    target = HERE / __version__
    if target.exists():
        sys.exit(f"{target} exists; frozen files are never changed")
    PLACE.mkdir()
    try:
        make(PLACE)
        pack(PLACE, target)
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)


if __name__ == "__main__":
    main()
