"""How true generated showers are: the flow, the distilled flows and the GAN against Geant4.

    clew data generate fastsim --set generator.kind=geant4 --set generator.energy=[1,30] --events 40000 --output showers
    python benchmarks/quality_fastsim.py --showers showers --folder work

Prepare, train, distil, generate, compare, as users do it. Three classifiers per model are trained to tell generated
from held-out Geant4 showers, on voxels and on high-level features; 0.5 is perfect. Energies are log-uniform in the
range of the training showers. The showers of Geant4 are clew's own (a W/Si calorimeter, models without data sets), not
those of the CaloChallenge: AUCs are not comparable with its results one to one.

It works in pieces: each training takes its minutes, and a training that is complete in `--folder` is not repeated. A
training of seconds before it measures the speed, from which the number of epochs follows: the learning rate falls
along a cosine to the last one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from _contest import Sheet, main, options

import clew
from clew import Dataset, Run
from clew.recipes.fastsim.features import Showers
from clew.recipes.fastsim.geometry import GeometryConfig
from clew.recipes.fastsim.quality.comparison import compare_sources
from clew.recipes.fastsim.quality.config import QualityConfig
from clew.settings import load_settings

LIMITS = {"flow": (0.65, 0.60), "distilled": (0.75, 0.75), "small": (0.75, 0.75)}
"""Largest AUC on voxels and on high-level features."""
TINY = ("model.width=24", "model.depth=1", "model.layer_width=32", "model.layer_depth=1", "model.channels=4")
OPTIMIZER = (
    *("train.optimizer.name=adamw", "train.ema=0.999", "train.clip=1.0", "train.batch_size=256"),
    *("train.schedule.name=cosine", "train.schedule.warmup=0.02"),
)
KINDS = {
    "flow": (*OPTIMIZER, "train.optimizer.lr=1e-3"),
    "distilled": (*OPTIMIZER, "train.optimizer.lr=3e-4"),
    "small": (*OPTIMIZER, "train.optimizer.lr=1e-3", "model.student_width=72", "model.student_depth=3"),
    "gan": (),
}
"""The models by name. `small` is a distilled flow with a small student, for processors."""
TRIAL_MINUTES = 0.2
"""Length of the training that measures the speed."""


def settings(kind: str, arguments: argparse.Namespace) -> list[str]:
    model = "distilled" if kind == "small" else kind
    more = [f"model.kind={model}", *KINDS[kind], *(TINY if arguments.quick else ()), *arguments.set]
    if model == "distilled":
        more += [f"model.teacher={arguments.folder / 'flow'}", f"model.steps={arguments.steps}"]
    if torch.cuda.is_available():
        more += ["train.precision=bf16", f"train.compile={str(arguments.compile and kind != 'gan').lower()}"]
    return more


def train(kind: str, dataset: Dataset, arguments: argparse.Namespace) -> Run | None:
    """Return the run of a kind, trained now or before; None if it is not wanted."""
    path = arguments.folder / kind
    if path.exists():
        return Run.open(path)
    if kind not in arguments.kinds.split(","):
        return None
    minutes = getattr(arguments, kind)
    epochs = possible_epochs(kind, dataset, minutes, arguments)
    loaded = load_settings("fastsim", [*settings(kind, arguments), f"train.epochs={epochs}"])
    return clew.train(loaded.recipe, dataset, config=loaded.train, output=path)


def possible_epochs(kind: str, dataset: Dataset, minutes: float, arguments: argparse.Namespace) -> int:
    """Return how many epochs fit into the minutes, with their validations, from a short training."""
    length = min(TRIAL_MINUTES, minutes / 4)
    trial = load_settings("fastsim", [*settings(kind, arguments), "train.epochs=2000", f"train.minutes={length}"])
    path = arguments.folder / f"{kind}-speed"
    shutil.rmtree(path, ignore_errors=True)
    run = clew.train(trial.recipe, dataset, config=trial.train, output=path)
    steps, validations = (list(run.records(kind=kind)) for kind in ("step", "validation"))
    half = len(steps) // 2  # the first ones compile and record
    late, before = steps[half:], steps[half - 1]["samples"] if half else 0
    speed = (late[-1]["samples"] - before) / sum(each["seconds"] for each in late)
    waiting = sum(each["wait"] for each in late) / sum(each["seconds"] for each in late)
    validation = min((each["seconds"] for each in validations), default=0.0)
    print(f"{kind}: {speed:.0f} showers/s, {100 * waiting:.0f}% waiting for data, {validation:.2f} s per validation")
    return max(int(60 * minutes / (dataset.splits["train"] / speed + validation)), 1)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    work = arguments.folder = arguments.folder or folder
    if not (work / "dataset").exists():
        loaded = load_settings("fastsim", ["prepare.split={train: 0.77, val: 0.005, test: 0.225}"])
        clew.prepare(loaded.recipe, loaded.prepare, input=arguments.showers, output=str(work / "dataset"))
    dataset = Dataset(work / "dataset")
    test = dataset.read("test", columns=("incident_energy", "voxels"))
    true = Showers(test.fixed("incident_energy"), test.fixed("voxels"))
    sheet.state("training showers", dataset.splits["train"], "")
    record = work / "quality.json"
    facts: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {"showers": dict(dataset.splits)}
    for kind in (each for each in KINDS if each not in facts):
        start = time.monotonic()
        run = train(kind, dataset, arguments)
        if run is None:
            continue
        sheet.state(f"{kind}: seconds of training, now", time.monotonic() - start, "s")
        facts[kind] = evaluate(sheet, kind, run, true, arguments)
        record.write_text(json.dumps(facts, indent=1))
    return facts


def evaluate(sheet: Sheet, kind: str, run: Run, true: Showers, arguments: argparse.Namespace) -> dict[str, Any]:
    """Compare generated showers of a run with true ones."""
    path = clew.generate(
        run,
        events=len(true.energy),
        ranges={"energy": (float(true.energy.min()) / 1000, float(true.energy.max()) / 1000)},
        output=arguments.folder / f"{kind}.h5",
        weights="last",
        replace=True,
    )
    with h5py.File(path) as file:
        generated = Showers(file["incident_energies"][:, 0], file["showers"][:])
    config = QualityConfig(
        showers=len(true.energy), seeds=1 if arguments.quick else 3, epochs=2 if arguments.quick else 60
    )
    quality = compare_sources(true, generated, GeometryConfig().load(), config)
    facts: dict[str, Any] = {"showers": quality.showers, "frechet": quality.frechet, "kernel": quality.kernel}
    for place, (name, score) in enumerate(sorted(quality.auc.items(), reverse=True)):
        facts[f"auc_{name}"] = score.aucs
        title, value = (
            f"{kind}: AUC on {name} ({', '.join(f'{each:.3f}' for each in score.aucs)})",
            float(np.mean(score.aucs)),
        )
        if kind in LIMITS:
            sheet.bar(title, value, LIMITS[kind][place], "", lower=True)
        else:
            sheet.state(title, value, "")
    sheet.state(f"{kind}: Frechet distance", quality.frechet.value, "")
    return facts


if __name__ == "__main__":
    parser = options(__doc__, "small networks, two epochs of classifiers")
    parser.add_argument("--showers", nargs="+", required=True, help="files or folders of Geant4 showers")
    parser.add_argument("--folder", type=Path, help="where runs are kept")
    parser.add_argument("--kinds", default=",".join(KINDS), help="models to train")
    parser.add_argument("--compile", action="store_true", help="train compiled flows, on a GPU")
    parser.add_argument("--flow", type=float, default=12, help="minutes of training of the flow")
    parser.add_argument("--distilled", type=float, default=4, help="of the distilled flow")
    parser.add_argument("--small", type=float, default=4, help="of the small distilled flow")
    parser.add_argument("--steps", type=int, default=1, help="steps of the distilled flows")
    parser.add_argument("--gan", type=float, default=3, help="of the GAN")
    parser.add_argument("--set", action="append", default=[], help="a setting of all models: model.layer_width=128")
    sys.exit(main(measure, parser))
