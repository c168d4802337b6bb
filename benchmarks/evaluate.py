"""Processor seconds of `clew evaluate` per event, for particle flow and liquid-argon images, and where they go.

A run of one step is evaluated on its validation events, in this process. The first evaluation is not counted. Processor
seconds of all threads are stated, because wall times depend on what else the machine does. Jets of a batch are compared
with jets of one event at a time from one object per particle (`tests.recipes.particleflow.jets_one_by_one`), in turns;
the medians count. With the same events: metrics of a validation, and of an evaluation, without any network.

    python benchmarks/evaluate.py [--quick] [--json FILE] [--profile] [--jets DATASET]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _contest import Sheet, alternate, main, options

sys.path.insert(0, str(Path(__file__).parent.parent))

import clew
from clew.recipes.particleflow import ParticleFlow, ParticleFlowConfig, jet_metrics, metrics
from clew.recipes.particleflow.rule_based import reconstruct_by_rule

CLEW = [sys.executable, "-c", "from clew.cli.main import run; run()"]
EVENTS = {"particleflow": (12, 120), "lartpc": (40, 400)}
"""Events with --quick, and without."""
GENERATOR = {"particleflow": ["--set", "generator.kind=parametric"], "lartpc": []}


def train_one_step(recipe: str, events: int, folder: Path) -> clew.Run:
    """A run whose dataset has half of the events for validation."""
    work = folder / recipe
    work.mkdir()
    for words in (
        ["data", "generate", recipe, "--events", str(events), "--output", "events", *GENERATOR[recipe]],
        [
            "prepare",
            recipe,
            "--input",
            "events",
            "--output",
            "dataset",
            "--set",
            "prepare.split={train: 0.5, val: 0.5}",
        ],
        ["train", recipe, "--dataset", "dataset", "--output", "run", "--batch-size", "4", "--set", "train.steps=1"],
    ):
        subprocess.run([*CLEW, *words], cwd=work, check=True, capture_output=True)
    return clew.Run.open(work / "run")


def processor_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def profile(recipe: str, run: clew.Run) -> None:
    """Print the functions in which most of the time of an evaluation passes."""
    profiler = cProfile.Profile()
    profiler.runcall(clew.evaluate, run, split="val")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def compare_jets(sheet: Sheet, dataset: Path, rounds: int) -> None:
    """Jets of all validation events: in one call, and one event at a time."""
    from tests.recipes.particleflow.jets_one_by_one import cluster_one_by_one

    samples = clew.Dataset(dataset).read("val")
    truth, offsets = metrics.true_particles(samples), samples.ragged("targets").offsets
    work = {
        "one by one": lambda: cluster_one_by_one(truth, offsets, 0.4, 20.0),
        "together": lambda: jet_metrics.cluster_jets(truth, offsets, 0.4, 20.0),
    }
    times = alternate({name: partial(processor_seconds, each) for name, each in work.items()}, rounds)
    medians = {name: float(np.median(each)) / len(samples) for name, each in times.items()}
    for name, seconds in medians.items():
        sheet.state(f"particleflow: jets, {name}", 1e3 * seconds, "CPU ms/event")
    for name, seconds in metric_seconds(samples, rounds).items():
        sheet.state(f"particleflow: {name}", 1e3 * seconds / len(samples), "CPU ms/event")
    sheet.bar("particleflow: jets together over one by one", medians["one by one"] / medians["together"], 1.5, "times")


def metric_seconds(samples: clew.Table, rounds: int) -> dict[str, float]:
    """Processor seconds of the metrics of these events, in batches of 16, whose particles are those of the rule."""
    recipe = ParticleFlow(ParticleFlowConfig())
    parts = [samples.slice(first, first + 16) for first in range(0, len(samples), 16)]
    objects = [reconstruct_by_rule(part.ragged("elements")) for part in parts]

    def compute(evaluation: bool) -> None:
        for part, particles in zip(parts, objects, strict=True):
            batch = part.slice(0, len(part))  # a new table, as in every validation
            recipe.metrics(batch, {}, particles)
            if evaluation:
                recipe.evaluation_metrics(batch, {}, particles)

    work = {"metrics of a validation": partial(compute, False), "metrics of an evaluation": partial(compute, True)}
    times = alternate({name: partial(processor_seconds, each) for name, each in work.items()}, rounds)
    return {name: float(np.median(each)) for name, each in times.items()}


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    repeats = 5 if arguments.quick else 9
    if arguments.jets:
        compare_jets(sheet, arguments.jets, repeats)
        return {"repeats": repeats}
    for recipe, sizes in EVENTS.items():
        run = train_one_step(recipe, sizes[not arguments.quick], folder)
        events = clew.evaluate(run, split="val").events
        times = [processor_seconds(partial(clew.evaluate, run, split="val")) for _ in range(repeats)]
        sheet.state(f"{recipe}: clew evaluate", 1e3 * float(np.median(times)) / events, "CPU ms/event")
        if arguments.profile:
            profile(recipe, run)
        if recipe == "particleflow":
            compare_jets(sheet, folder / recipe / "dataset", repeats)
    return {"repeats": repeats, "events": {name: sizes[not arguments.quick] for name, sizes in EVENTS.items()}}


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--profile", action="store_true", help="print where the time of an evaluation passes")
    parser.add_argument("--jets", type=Path, help="only compare jets, of a prepared dataset of particle flow")
    sys.exit(main(measure, parser))
