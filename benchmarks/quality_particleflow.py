"""How well particle flow is learned: masked accuracy of the networks, a perceptron that sees one element, the majority.

Events of the generator (Pythia ttbar with pile-up, or parametric ones without Pythia), made once; three seeds, each
with its own split and first weights; prepare, train, evaluate, as users do it. All networks see the same events for the
same epochs with the same loss and rate. The majority is the commonest class of the training events. Accuracies are over
elements of the test split that no network has seen: no padding counts.

The default is a small setting (20 pile-up, about 860 elements an event, a network of a quarter of the published width)
that a laptop can do; `--full` is the published one (200 pile-up, 3.29M parameters), for a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _contest import Sheet, main, options

import clew
from clew import Dataset, Run, spec
from clew.recipes.particleflow.columns import TARGETS

KINDS = ("graph", "element")
SEEDS = (1, 2, 3)
SMALL = ["model.width=64", "model.distance=32", "model.bin_size=160", "model.identity_width=64"]
SMALL += ["model.momentum_width=64", "train.optimizer.lr=0.002", "judging.jets=false", "train.threads=2"]


def generated(folder: Path, events: int, arguments: argparse.Namespace) -> tuple[list[str], str]:
    """Files of events, and what made them."""
    kind = "pythia" if importlib.util.find_spec("pythia8mc") else "parametric"
    recipe = spec.load("particleflow", [f"generator.kind={kind}", f"generator.pileup={_pileup(arguments)}"]).recipe
    return [str(path) for path, _ in recipe.generate(events, 1, folder / "events")], kind


def _pileup(arguments: argparse.Namespace) -> int:
    return 200 if arguments.full else 20


def trained(kind: str, seed: int, files: list[str], folder: Path, arguments: argparse.Namespace) -> tuple[Dataset, Run]:
    more = [] if arguments.full else [*SMALL]
    more += [f"model.kind={kind}", f"train.seed={seed}", f"prepare.seed={seed}", f"train.epochs={arguments.epochs}"]
    more += arguments.set or []
    loaded = spec.load("particleflow", more)
    data = clew.prepare(loaded.recipe, loaded.prepare, input=files, output=str(folder / f"data-{seed}"), workers=1)
    return data, clew.train(loaded.recipe, data, loaded.train, output=folder / f"{kind}-{seed}")


def majority(data: Dataset) -> float:
    """The share in the test events of the class that is commonest in the training events."""
    train, test = (data.read(split).ragged(TARGETS).values[:, 0].astype(np.int64) for split in ("train", "test"))
    return float((test == np.bincount(train).argmax()).mean())


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    events = arguments.events or (100 if arguments.quick else 400)
    arguments.epochs = arguments.epochs or (3 if arguments.quick else 10)
    files, made = generated(folder, events, arguments)
    found: dict[str, list[float]] = {name: [] for name in ("majority", *arguments.kinds)}
    counts: dict[str, int] = {}
    for seed in SEEDS:
        for kind in arguments.kinds:
            data, run = trained(kind, seed, files, folder, arguments)
            found[kind].append(clew.evaluate(run).tallies["accuracy"].value)
            counts = {split: len(data.read(split)) for split in data.splits}
        found["majority"].append(majority(data))
    for name, values in found.items():
        sheet.state(f"{name}: accuracy over elements, mean of {len(values)} seeds", statistics.mean(values), "")
        sheet.state(f"{name}: spread over seeds", statistics.stdev(values), "")
    for rival in ("majority", *(kind for kind in arguments.kinds if kind == "element")):
        for kind in arguments.kinds:
            if kind not in ("element", rival):
                gain = min(a - b for a, b in zip(found[kind], found[rival], strict=True))
                sheet.bar(f"{kind} against {rival}, the least gain of a seed", gain, 0.0, "accuracy")
    settings = {"events": counts, "epochs": arguments.epochs, "generator": made, "pileup": _pileup(arguments)}
    return {**settings, "full": arguments.full, "accuracy": found, "set": arguments.set or []}


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--full", action="store_true", help="the published sizes; needs a GPU")
    parser.add_argument("--events", type=int, help="default: 400, or 100 with --quick")
    parser.add_argument("--epochs", type=int, help="default: 10, or 3 with --quick")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), help="networks by model.kind")
    parser.add_argument("--set", action="append", help="a setting more, as train.precision=bf16")
    sys.exit(main(measure, parser))
