"""The quality of particle flow: masked accuracy of the networks, of a perceptron on single elements, of the majority.

Events of Pythia (pairs of tops with pile-up), made here, or of collisions copied to a machine without Pythia
(`--collisions`, see `_carried.py`); parametric ones where there is neither. Three seeds, each with its own split and
first weights; prepare, train, evaluate, as users do it. All networks see the same events for the same epochs with the
same loss. With several `--rates` each network has the one that is best on validation events with a seed of its own,
which is not among the three. The majority is the commonest class of the training events. Accuracies are over elements
of the test split that no network has seen: no padding counts.

The default is a small setting (20 pile-up, about 860 elements per event, a network of a quarter of the published width)
that a laptop can do; `--full` is the published one (200 pile-up, 3.29M parameters), for a GPU. With `--minutes` every
training gets its share of the time that is left and ends when it is over. `--json` is written after every training.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _carried import overlaid
from _contest import Sheet, main, options

import clew
from clew import Dataset, Run
from clew.recipes.particleflow.columns import TARGETS
from clew.settings import load_settings

KINDS = ("graph", "element")
SEEDS = (1, 2, 3)
WORKERS = min(4, os.cpu_count() or 1)
SMALL = ["model.width=64", "model.distance=32", "model.bin_size=160", "model.identity_width=64"]
SMALL += ["model.momentum_width=64", "metrics.jets=false", "train.threads=2"]
FULL = ["train.batch_size=16", "metrics.jets=false"]
MORE = {"train.optimizer.lr_rule": "none", "train.trace": "false", "train.keep_checkpoints": "1"}


class Study:
    """Trainings one after the other, within a time limit, and their results."""

    def __init__(self, files: list[str], folder: Path, arguments: argparse.Namespace, trainings: int) -> None:
        self.files, self.folder, self.arguments, self.left = files, folder, arguments, trainings
        self.end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
        self.done: list[dict[str, Any]] = []

    def train(self, kind: str, seed: int, rate: float, epochs: int) -> Run:
        """One training, as a user would do it."""
        start = time.monotonic()
        loaded = load_settings("particleflow", self._settings(kind, seed, rate, epochs))
        output = self.folder / f"data-{seed}"
        data = clew.prepare(loaded.recipe, loaded.prepare, input=self.files, output=str(output), workers=WORKERS)
        run = clew.train(loaded.recipe, data, config=loaded.train, output=self.folder / f"{kind}-{seed}-{rate:g}")
        self.left -= 1
        accuracies = [each["metrics"]["accuracy"] for each in run.records(kind="validation")]
        summary = {
            "kind": kind,
            "seed": seed,
            "rate": rate,
            "epochs": len(accuracies),
            "of": epochs,
            "validation": accuracies,
        }
        summary["parameters"] = next(run.records(kind="plan"))["parameters"]
        steps = [record for record in run.records(kind="step") if record["epoch"] > 0]
        taken = sum(record["seconds"] for record in steps)
        summary["events_per_second"] = (steps[-1]["samples"] - steps[0]["samples"]) / taken if taken else None
        self.keep(summary | {"seconds": round(time.monotonic() - start)})
        return run

    def keep(self, summary: dict[str, Any]) -> None:
        """Write to disk at once, in case the process is killed later."""
        self.done.append(summary)
        print(f"# {json.dumps(summary | {'validation': summary['validation'][-1:]})}", flush=True)
        if self.arguments.json:
            self.arguments.json.write_text(json.dumps({"bars": [], "conditions": {"trainings": self.done}}, indent=1))

    def _settings(self, kind: str, seed: int, rate: float, epochs: int) -> list[str]:
        values = {**MORE, "model.kind": kind, "train.seed": seed, "prepare.seed": seed, "train.epochs": epochs}
        values |= {"train.optimizer.lr": rate}
        if self.end:
            values["train.minutes"] = max(0.05, (self.end - time.monotonic()) / 60 / max(1, self.left))
        options = [f"{name}={value}" for name, value in values.items()]
        return [*(FULL if self.arguments.full else SMALL), *options, *(self.arguments.set or [])]

    def rate(self, kind: str) -> float:
        """The one that is best on validation events after a third of the epochs; the seed is none of those compared."""
        rates = self.arguments.rates
        if len(rates) == 1:
            return float(rates[0])
        for rate in rates:
            self.train(kind, 0, rate, max(1, self.arguments.epochs // 3))
        tried = self.done[-len(rates) :]
        return float(max(tried, key=lambda each: max(each["validation"], default=0.0))["rate"])


def generated(folder: Path, events: int, arguments: argparse.Namespace) -> tuple[list[str], str]:
    """Files of events, and what made them."""
    if arguments.collisions:
        return overlaid(arguments.collisions, events, 1, folder / "events"), "pythia, carried"
    kind = "pythia" if importlib.util.find_spec("pythia8mc") and not arguments.parametric else "parametric"
    recipe = load_settings("particleflow", [f"generator.kind={kind}", f"generator.pileup={_pileup(arguments)}"]).recipe
    return [str(path) for path, _ in recipe.generate(events, 1, folder / "events")], kind


def _pileup(arguments: argparse.Namespace) -> int:
    return 200 if arguments.full else 20


def majority(data: Dataset) -> float:
    """The share in the test events of the class that is commonest in the training events."""
    train, test = (data.read(split).ragged(TARGETS).values[:, 0].astype(np.int64) for split in ("train", "test"))
    return float((test == np.bincount(train).argmax()).mean())


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    events = arguments.events or (100 if arguments.quick else 400)
    arguments.epochs = arguments.epochs or (3 if arguments.quick else 10)
    arguments.rates = arguments.rates or [1e-3 if arguments.full else 2e-3]
    files, generator = generated(folder, events, arguments)
    tuned = len(arguments.kinds) * len(arguments.rates) if len(arguments.rates) > 1 else 0
    study = Study(files, folder, arguments, len(arguments.kinds) * len(SEEDS) + tuned)
    rates = {kind: study.rate(kind) for kind in arguments.kinds}
    results: dict[str, list[float]] = {name: [] for name in ("majority", *arguments.kinds)}
    classes: dict[str, list[dict[str, float]]] = {kind: [] for kind in arguments.kinds}
    counts: dict[str, int] = {}
    for seed in SEEDS:
        for kind in arguments.kinds:
            run = study.train(kind, seed, rates[kind], arguments.epochs)
            tallies = clew.evaluate(run, batch_size=16).metrics
            results[kind].append(tallies["accuracy"].value)
            study.done[-1]["test"] = tallies["accuracy"].value
            classes[kind].append(
                {key: tallies[key].value for key in tallies if key.startswith(("efficiency/", "fake/"))}
            )
        data = Dataset(folder / f"data-{seed}")
        counts = {split: len(data.read(split)) for split in data.splits}
        results["majority"].append(majority(data))
    for name, values in results.items():
        sheet.state(f"{name}: accuracy over elements, mean of {len(values)} seeds", statistics.mean(values), "")
        sheet.state(f"{name}: spread over seeds", statistics.stdev(values), "")
    for rival in ("majority", *(kind for kind in arguments.kinds if kind == "element")):
        for kind in arguments.kinds:
            if kind not in ("element", rival):
                gain = min(a - b for a, b in zip(results[kind], results[rival], strict=True))
                sheet.bar(f"{kind} against {rival}, the least gain of a seed", gain, 0.0, "accuracy")
    settings = {"events": counts, "epochs": arguments.epochs, "generator": generator, "pileup": _pileup(arguments)}
    settings |= {"full": arguments.full, "accuracy": results, "efficiency": classes, "rates": rates}
    return {**settings, "trainings": study.done, "set": arguments.set or []}


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--full", action="store_true", help="the published sizes; needs a GPU")
    parser.add_argument("--events", type=int, help="default: 400, or 100 with --quick")
    parser.add_argument("--epochs", type=int, help="default: 10, or 3 with --quick")
    parser.add_argument("--minutes", type=float, help="end within about so long")
    parser.add_argument("--rates", nargs="+", type=float, help="learning rates to choose from")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), help="networks by model.kind")
    parser.add_argument("--collisions", type=Path, help="Pythia's, carried here")
    parser.add_argument("--parametric", action="store_true", help="no Pythia, though it is there")
    parser.add_argument("--set", action="append", help="a setting more, as train.precision=bf16")
    sys.exit(main(measure, parser))
