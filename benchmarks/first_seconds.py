"""What a user waits for before anything happens: `clew --help`, and the first line and first step of `clew train`.

`clew --help` is stated in CPU seconds of the whole command. `clew train` trains the jet tagger on a small prepared
dataset, in a terminal of its own (as a user would see it): the seconds from the start of the process to its first line
of output, and to the loss of its first batch, which the recipe notes. Everything was run once before, so that the
system holds the files in memory. Another process on the machine makes the wall times longer: the processor seconds of
the same command up to its first step, and the cores that were busy with other work, are stated beside them.

    python benchmarks/first_seconds.py --quick --json first_seconds.json
"""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _contest import Sheet, main, options

CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]
RECIPE = """
import time
from pathlib import Path
from clew.recipes.tagger import JetTagger


class Noting(JetTagger):
    def loss(self, outputs, batch):
        value = super().loss(outputs, batch)
        if value.requires_grad and not Path("first_step").exists():
            Path("first_step").write_text(f"{time.time()} {time.process_time()}")
        return value
"""


def cpu_seconds(command: list[str]) -> float:
    """CPU seconds of a command and its children."""
    before = os.times()
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def first_output(command: list[str], folder: Path) -> tuple[float, float]:
    """Run a command in a terminal of its own; return when it started and when it wrote its first character."""
    master, terminal = pty.openpty()
    start = time.time()
    process = subprocess.Popen(
        command, cwd=folder, stdout=terminal, stderr=terminal, stdin=terminal, start_new_session=True
    )
    os.close(terminal)
    first = 0.0
    try:
        while os.read(master, 4096):
            first = first or time.time()
    except OSError:
        pass  # the terminal is closed when the command ends
    os.close(master)
    assert process.wait() == 0, command
    return start, first


def train(folder: Path) -> tuple[float, float, float]:
    """Train for one epoch; return the seconds to the first line and to the first step, and its processor seconds."""
    (folder / "first_step").unlink(missing_ok=True)
    words = ["train", "noting.py", "--dataset", "dataset", "--epochs", "1", "--set", "train.threads=1"]
    start, first = first_output([*CLEW, *words], folder)
    at, spent = map(float, (folder / "first_step").read_text().split())
    return first - start, at - start, spent


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    repeats = 5 if arguments.quick else 15
    (folder / "noting.py").write_text(RECIPE)
    for words in (
        ["data", "generate", "tagger", "--events", "2000", "--output", "events"],
        ["prepare", "noting.py", "--input", "events", "--output", "dataset"],
    ):
        subprocess.run([*CLEW, *words], cwd=folder, check=True, capture_output=True)
    cpu_seconds([*CLEW, "--help"])
    train(folder)
    helps = [cpu_seconds([*CLEW, "--help"]) for _ in range(repeats)]
    trains = np.array([train(folder) for _ in range(repeats)])
    sheet.bar("clew --help", float(np.median(helps)), 0.25, "CPU s", lower=True)
    sheet.bar("clew train: first line", float(np.median(trains[:, 0])), 0.5, "s", lower=True)
    sheet.bar("clew train: first loss", float(np.median(trains[:, 1])), 3.0, "s", lower=True)
    sheet.state("clew train: processor time until the first loss", float(np.median(trains[:, 2])), "CPU s")
    return {"repeats": repeats, "cores": os.cpu_count(), "load": os.getloadavg()[0]}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__, "five repeats instead of fifteen")))
