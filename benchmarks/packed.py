"""Trials of small models in packs, against trials as separate runs.

    python benchmarks/packed.py [--quick] [--json FILE]
    python benchmarks/packed.py --gpu [--quick] [--json FILE]

The recipe `jetfeatures` at its defaults but for batches of 64: a perceptron of 9.7 thousand parameters on jets that are
random numbers. A study of 32 trials (learning rate, weight decay, seed; random search) on two slots of a core each,
three ways: a fresh process a trial, forks of a warm server (`clew tune`), and packs (`clew tune --packed`). The warm
server is loaded before the clock starts. Ways take turns; the warm one against itself is the control. Beside the clock
stand processor seconds of trials and coordinator, which others on the machine do not change much.

`--gpu`: model-steps a second on an NVIDIA device: steps of 256 packed models, data and loop included, against the same
network trained one model at a time: eager, recorded as a CUDA graph, and graphs in several streams or processes. Then,
without a bar, whole studies: records, validation and metrics of every trial included.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet, main, options
from jets import jets

import clew
from clew import Dataset, spec
from clew.launch import warm
from clew.launch.launcher import Room, find, portion
from clew.tune.api import tune
from clew.tune.jobs import Jobs
from clew.tune.packed import Packed
from clew.tune.work import Executor

SPACE = {
    "train.optimizer.lr": {"log": [1e-4, 1e-2]},
    "train.optimizer.weight_decay": {"log": [1e-6, 1e-3]},
    "train.seed": {"uniform": [0, 10_000], "integer": True},
}
FRESH, WARM, DEVICE = 5.0, 1.8, 20.0
"""The bars."""


def data(folder: Path, events: int) -> Dataset:
    """Jets without a meaning, prepared."""
    table = jets(events)
    mass = np.random.default_rng(2).exponential(60, events) + 5.0 * table.fixed("label")
    table.join({"jet_mass": mass}).save(folder / "jets.h5")
    return clew.prepare("jetfeatures", input=[str(folder / "jets.h5")], output=str(folder / "dataset"), workers=1)


def template(dataset: Dataset, trials: int, epochs: int, packed: int | None) -> spec.Spec:
    tuned = {"space": SPACE, "trials": trials, "sampler": {"name": "random", "seed": 1}, "packed": packed}
    train = {"dataset": str(dataset.path), "batch_size": 64, "epochs": epochs, "threads": 1}
    values = {**{f"train.{name}": value for name, value in train.items()}, "tune": tuned}
    return spec.load("jetfeatures").changed(values, "here")


Way = Callable[[spec.Spec, Any], Executor]


def study(path: Path, given: spec.Spec, way: Way) -> tuple[float, float]:
    """Seconds on the clock and of processors that a study takes."""
    begun, cpu = time.perf_counter(), time.process_time()
    done = tune(given, path, executor=lambda opened: way(given, opened))
    seconds, own = time.perf_counter() - begun, time.process_time() - cpu
    assert done.count()["complete"] == done.wanted, done.count()
    return seconds, own + sum(each.cpu for each in done.outcomes())


def on_processor(sheet: Sheet, folder: Path, quick: bool) -> Mapping[str, Any]:
    trials, epochs, rounds = (8, 1, 1) if quick else (32, 3, 2)
    dataset = data(folder, 20_000)
    cores = sorted(os.sched_getaffinity(0))
    rooms = [Room(portion(cores, place, 2)) for place in range(2)]
    size = -(-trials // 2)
    ways: dict[str, tuple[int | None, Way]] = {
        "a fresh process a trial": (None, lambda given, s: Jobs(s.folder, given, rooms, find("local"))),
        "forks of a warm server": (None, lambda given, s: Jobs(s.folder, given, rooms)),
        "forks again": (None, lambda given, s: Jobs(s.folder, given, rooms)),
        "packs": (size, lambda given, s: Packed(s.folder, given, rooms)),
    }
    warm.ready("jetfeatures")
    study(folder / "before", template(dataset, 2, 1, None), ways["forks of a warm server"][1])
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, (packed, way) in ways.items():
            path = folder / f"{name.replace(' ', '-')}-{number}"
            times[name].append(study(path, template(dataset, trials, epochs, packed), way))
            wall, cpu = times[name][-1]
            sheet.state(f"{name}: trials/hour", 3600 * trials / wall, f"({cpu / trials:.2f} s of processor a trial)")
    best = {name: (min(w for w, _ in each), min(c for _, c in each)) for name, each in times.items()}
    packs = best["packs"]
    for name, limit in (("a fresh process a trial", FRESH), ("forks of a warm server", WARM)):
        sheet.bar(f"packs against {name}, on the clock", best[name][0] / packs[0], limit, "x")
        sheet.state(f"packs against {name}, processor", best[name][1] / packs[1], "x")
    control = best["forks again"][0] / best["forks of a warm server"][0]
    sheet.state("control: forks against forks", control, "x")
    return {"trials": trials, "epochs": epochs, "samples": dataset.splits["train"], "times": times}


def packed_rate(
    dataset: Dataset, models: int, *, dropout: float = 0.0, compiled: bool = False, seconds: float = 4.0
) -> tuple[float, float]:
    """Model-steps a second of a pack, as its loop does them, with the numbers of each step made on the processor; and
    milliseconds a step."""
    from clew.train.packed import group
    from clew.train.packed.replay import replayed
    from clew.train.packed.step import PackEngine
    from clew.train.packed.supply import Supply
    from clew.train.supply import best_device

    given = template(dataset, 1, 1, None)
    device = best_device(0)
    each = [
        given.changed(
            {"train.seed": n, "train.order": 0, "train.optimizer.lr": 1e-3 + 1e-6 * n, "model.dropout": dropout}, ""
        )
        for n in range(models)
    ]
    recipes, configs = [own.recipe for own in each], [own.train for own in each]
    made = [group.model_of(recipe, config) for recipe, config in zip(recipes, configs, strict=True)]
    engine, supply = PackEngine(recipes, made, configs, device), Supply(recipes[0], configs[0], dataset, device)
    first = next(iter(supply.epoch(0, 0))).batch
    engine.prepare(first)
    if compiled:
        engine.compile(first)
    learn, step, epoch, begun = replayed(engine), 0, 0, 0.0
    while not begun or time.perf_counter() - begun < seconds:
        plan = engine.plan(step, torch.ones((supply.steps(epoch), models), dtype=torch.float64))
        for batch in supply.epoch(epoch, 0):
            learn(batch, plan, step)
            step += 1
        torch.accelerator.synchronize()
        epoch += 1
        if epoch == 1:
            begun, before = time.perf_counter(), step
    took = time.perf_counter() - begun
    return models * (step - before) / took, 1e3 * took / (step - before)


def on_device(sheet: Sheet, folder: Path, quick: bool) -> Mapping[str, Any]:
    if not torch.cuda.is_available():
        print("skipped: torch finds no NVIDIA device here")
        return {}
    import _separate as rivals

    torch.set_num_threads(1)
    device, models = torch.device("cuda", 0), 256
    dataset = data(folder, 20_000)
    found = {
        "one at a time, eager": rivals.rate(rivals.eager(device, rivals.Data(device))),
        "one at a time, a CUDA graph": rivals.rate(rivals.graphed(device, rivals.Data(device))),
        "again (control)": rivals.rate(rivals.graphed(device, rivals.Data(device))),
    }
    for count in (8, 32) if quick else (8, 16, 32, 64):
        found[f"CUDA graphs in {count} streams"] = rivals.in_streams(device, rivals.Data(device), count)
    for kind in ("eager", "graphed"):
        for count in (8,) if quick else (6, 14):
            found[f"{count} processes, {kind}"] = rivals.in_processes(kind, count)
    for name, each in found.items():
        sheet.state(f"separate, {name}: model-steps/s", each, "")
    best = max(found, key=lambda name: found[name])
    ours = {"packed, 256 models": packed_rate(dataset, models)}
    ours["packed, with dropout"] = packed_rate(dataset, models, dropout=0.1)
    ours["packed, 1,024 models"] = packed_rate(dataset, 4 * models)
    if not quick:
        try:
            ours["packed, 256 models, train.compile"] = packed_rate(dataset, models, compiled=True)
        except Exception as error:  # no compiler on the machine
            print(f"  not compiled: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    for name, (each, times) in ours.items():
        sheet.state(f"{name}: model-steps/s", each, f"({times:.3f} ms a step)")
    whole = ours["packed, 256 models"][0]
    sheet.bar("256 trials packed against the best separate way", whole / found[best], DEVICE, "x")
    if "packed, 256 models, train.compile" in ours:
        whole = ours["packed, 256 models, train.compile"][0]
        sheet.state("the same with train.compile", whole / found[best], "x")
    studies(sheet, folder, dataset, quick)
    return {"best": best, "separate": found, "device": torch.cuda.get_device_name(0)}


def studies(sheet: Sheet, folder: Path, dataset: Dataset, quick: bool) -> None:
    """Whole studies on the device: trials an hour."""
    epochs = 2
    warm.ready("jetfeatures")
    one = [Room((), (0,))]
    study(folder / "begin", template(dataset, 1, 1, None), lambda given, s: Jobs(s.folder, given, one))
    packs: Way = lambda given, s: Packed(s.folder, given, one)  # noqa: E731
    seconds, _ = study(folder / "packs", template(dataset, 256, epochs, 256), packs)
    sheet.state("a study of 256 trials, packed: trials/hour", 3600 * 256 / seconds, f"({seconds:.1f} s)")
    trials, parallel = (16, 8) if quick else (48, 12)
    many = partial(_jobs, rooms=one * parallel)
    seconds, _ = study(folder / "apart", template(dataset, trials, epochs, None), many)
    told = f"({parallel} at a time, {trials} trials)"
    sheet.state("a study of separate runs: trials/hour", 3600 * trials / seconds, told)


def _jobs(given: spec.Spec, opened: Any, rooms: list[Room]) -> Executor:
    return Jobs(opened.folder, given, rooms)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    return (on_device if arguments.gpu else on_processor)(sheet, folder, arguments.quick)


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--gpu", action="store_true", help="on an NVIDIA device instead")
    sys.exit(main(measure, parser))
