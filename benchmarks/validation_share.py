"""The share of validation in the time of a training, for every recipe that makes its own events.

Each recipe trains three epochs on a few generated events, with its own settings and split. The first epoch is not
counted. The share is that of seconds in records: of validations over validations and steps. Both are wall times of the
same process, so other work on the machine makes both longer.

    python benchmarks/validation_share.py [--quick] [--json FILE] [--only RECIPE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _contest import Sheet, main, options

import clew

CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]
RECIPES: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "tagger": (4000, 20_000, ()),
    "jets": (2000, 10_000, ()),
    "jetfeatures": (2000, 10_000, ()),
    "tracking": (40, 200, ()),
    "hitgraph": (40, 200, ()),
    "lartpc": (40, 200, ()),
    "fastsim": (1000, 10_000, ()),
    "particleflow": (20, 100, ("--set", "generator.kind=parametric")),
}
"""Events with --quick and without, and further words for `clew data generate`."""
LIMIT = 5.0
"""Percent of the time of a training."""


def share(recipe: str, events: int, words: tuple[str, ...], folder: Path) -> float:
    """Train, and return the percentage of the time in validation after the first epoch."""
    folder.mkdir()
    for command in (
        ["data", "generate", recipe, "--events", str(events), "--output", "events", *words],
        ["prepare", recipe, "--input", "events", "--output", "dataset"],
        ["train", recipe, "--dataset", "dataset", "--output", "run", "--epochs", "3"],
    ):
        subprocess.run([*CLEW, *command], cwd=folder, check=True, capture_output=True)
    run = clew.Run.open(folder / "run")
    steps = sum(each["seconds"] for each in run.records(kind="step") if each["epoch"] > 0)
    validations = sum(each["seconds"] for each in run.records(kind="validation") if each["epoch"] > 0)
    return float(100 * validations / (steps + validations))


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    names = [arguments.only] if arguments.only else list(RECIPES)
    for name in names:
        few, many, words = RECIPES[name]
        percent = share(name, few if arguments.quick else many, words, folder / name)
        sheet.bar(f"{name}: validation", percent, LIMIT, "% of the time", lower=True)
    return {"events": {name: RECIPES[name][not arguments.quick] for name in names}}


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--only", choices=RECIPES, help="one recipe")
    sys.exit(main(measure, parser))
