"""Trials of small models in packs, against trials as separate runs.

    python benchmarks/packed.py [--quick] [--rounds N] [--json FILE]
    python benchmarks/packed.py --gpu [--json FILE]

The recipe `jetfeatures` at its defaults but for batches of 64: a perceptron of 9.7 thousand parameters on jets that are
random numbers. A study of 32 trials (learning rate, weight decay, seed; random search) on two slots of a core each,
three ways: a new process per trial, forks of a warm server (`clew tune`), and packs (`clew tune --packed`). The warm
server is loaded before the clock starts. The ways take turns; the warm one against itself is the control. In addition
to wall time, the CPU seconds of trials and coordinator are given, which depend less on other load of the machine.

`--gpu`: model steps per second on an NVIDIA device: steps of 256 packed models, with the selection of their batches but
without records and validation, against the same network trained one model at a time: eager, recorded as CUDA graphs of
one step or 16 steps, and those in several streams or processes. Each has a few seconds and its own processes, which are
stopped if they hang. Results are printed (and written) as they come, and nothing is started after `--budget` seconds.
`--study` adds, without a limit, a complete study: with records, validation and metrics of every trial.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet, main, options
from jets import jets

import clew
from clew import Dataset, settings
from clew.jobs.launchers import warm
from clew.jobs.launchers.launcher import Slot, core_share, find_launcher
from clew.tuning.api import tune
from clew.tuning.executor import Executor
from clew.tuning.job_executor import JobExecutor
from clew.tuning.pack_executor import PackExecutor

SPACE = {
    "train.optimizer.lr": {"log": [1e-4, 1e-2]},
    "train.optimizer.weight_decay": {"log": [1e-6, 1e-3]},
    "train.seed": {"uniform": [0, 10_000], "integer": True},
}
FRESH, WARM, DEVICE = 5.0, 1.8, 20.0
"""The bars."""
PACKED = "packed, 256 models"
BEGUN = time.perf_counter()


def data(folder: Path, events: int) -> Dataset:
    """Random jets, prepared."""
    table = jets(events)
    mass = np.random.default_rng(2).exponential(60, events) + 5.0 * table.fixed("label")
    table.join({"jet_mass": mass}).save(folder / "jets.h5")
    return clew.prepare("jetfeatures", input=[str(folder / "jets.h5")], output=str(folder / "dataset"), workers=1)


def template(dataset: Dataset, trials: int, epochs: int, packed: int | None) -> settings.Settings:
    tuned = {"space": SPACE, "trials": trials, "sampler": {"name": "random", "seed": 1}, "packed": packed}
    train = {"dataset": str(dataset.path), "batch_size": 64, "epochs": epochs, "threads": 1}
    values = {**{f"train.{name}": value for name, value in train.items()}, "tune": tuned}
    return settings.load_settings("jetfeatures").changed(values, "here")


Way = Callable[[settings.Settings, Any], Executor]


def study(path: Path, template_settings: settings.Settings, way: Way) -> tuple[float, float]:
    """The wall time and CPU time of a study, in seconds."""
    start, cpu = time.perf_counter(), time.process_time()
    done = tune(template_settings, path, executor=lambda opened: way(template_settings, opened))
    seconds, own_cpu = time.perf_counter() - start, time.process_time() - cpu
    assert done.count()["complete"] == done.total_trials, done.count()
    return seconds, own_cpu + sum(each.cpu for each in done.trials())


def on_processor(sheet: Sheet, folder: Path, quick: bool, rounds: int) -> Mapping[str, Any]:
    trials, epochs, rounds = (8, 1, 1) if quick else (32, 3, rounds)
    dataset = data(folder, 20_000)
    cores = sorted(os.sched_getaffinity(0))
    rooms = [Slot(core_share(cores, place, 2)) for place in range(2)]
    size = -(-trials // 2)
    ways: dict[str, tuple[int | None, Way]] = {
        "a fresh process a trial": (
            None,
            lambda settings, s: JobExecutor(s.folder, settings, rooms, find_launcher("local")),
        ),
        "forks of a warm server": (None, lambda settings, s: JobExecutor(s.folder, settings, rooms)),
        "forks again": (None, lambda settings, s: JobExecutor(s.folder, settings, rooms)),
        "packs": (size, lambda settings, s: PackExecutor(s.folder, settings, rooms)),
    }
    warm.prepare_server("jetfeatures")
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
    dataset: Dataset, models: int, *, dropout: float = 0.0, compiled: bool = False, seconds: float = 3.0
) -> float:
    """Return the model steps per second of a pack in its loop, with the gathering of batches."""
    from clew.training.device import find_device
    from clew.training.packs import grouping
    from clew.training.packs.engine import MAX_PLANNED_STEPS, PackEngine
    from clew.training.packs.graph_replay import make_step_runner
    from clew.training.packs.samples import PackSamples

    settings = template(dataset, 1, 1, None).changed({"model.dropout": dropout, "train.order": 0}, "here")
    device, plain = find_device(), settings.train.optimizer
    configs = [
        settings.train.model_copy(update={"seed": n, "optimizer": plain.model_copy(update={"lr": 1e-3 + 1e-6 * n})})
        for n in range(models)
    ]
    networks = [grouping.initial_model(settings.recipe, config) for config in configs]
    engine = PackEngine([settings.recipe] * models, networks, configs, device)
    samples = PackSamples(settings.recipe, configs[0], dataset, device)
    first = samples.epoch(0, 0).take().batch
    engine.prepare(first)
    if compiled:
        engine.compile(first)
    run_steps, step, epoch, start, before = make_step_runner(engine), 0, 0, 0.0, 0
    while not start or time.perf_counter() - start < seconds:
        batches, last = samples.epoch(epoch, 0), step + samples.steps(epoch)
        while step < last:
            plan = engine.plan(step, torch.ones((min(last - step, MAX_PLANNED_STEPS), models), dtype=torch.float64))
            while step < plan.stop:
                step += len(run_steps(batches, plan, step, plan.stop - step).numbers)
        epoch += 1
        if epoch == 2:  # everything is recorded
            torch.accelerator.synchronize()
            start, before = time.perf_counter(), step
    torch.accelerator.synchronize()
    return models * (step - before) / (time.perf_counter() - start)


def on_device(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    if not torch.cuda.is_available():
        print("skipped: torch finds no NVIDIA device here")
        return {}
    from _separate import Rival

    faulthandler.dump_traceback_later(100, repeat=True)  # if something hangs, this shows where
    torch.set_num_threads(1)
    models, dataset = 256, data(folder, 20_000)
    rates: dict[str, float] = {}

    def report_rate(name: str, way: Callable[[], float]) -> None:
        if time.perf_counter() - BEGUN > arguments.budget:
            print(f"  no time left for: {name}", flush=True)
            return
        try:
            rates[name] = way()
        except Exception as error:
            print(f"  {name}: {type(error).__name__}: {error}", flush=True)
            return
        sheet.state(f"{name}: model-steps/s", rates[name], f"(after {time.perf_counter() - BEGUN:.0f} s)")
        if arguments.json:
            arguments.json.write_text(json.dumps({"partial": rates}, indent=1) + "\n")

    report_rate(PACKED, lambda: packed_rate(dataset, models))
    rivals = {
        "separate, a CUDA graph": Rival(1),
        "control: a CUDA graph again": Rival(1),
        "separate, eager": Rival("eager"),
        "separate, CUDA graphs of 16 steps": Rival(16),
        **{f"separate, {n} streams, CUDA graphs of 16 steps": Rival(16, n) for n in (4, 16, 32)},
        "separate, 8 processes, CUDA graphs of 16 steps": Rival(16, processes=8),
    }
    for names in (list(rivals)[:-1], list(rivals)[-1:]):  # 26 processes at once had no memory left
        try:
            for name in names:
                rivals[name].begin()
            for name in names:
                report_rate(name, rivals[name].rate)
        finally:
            for name in names:
                rivals[name].end()
    report_rate("control: packed again", lambda: packed_rate(dataset, models))
    separate = [name for name in rates if name.startswith("separate")]
    best = max(separate, key=lambda name: rates[name], default="")
    missing = [name for name in rivals if name not in rates]
    if PACKED in rates and not missing:
        sheet.bar("256 trials packed against the best separate way", rates[PACKED] / rates[best], DEVICE, "x")
    else:
        print(f"  no ratio: not measured are {', '.join(missing) or PACKED}", flush=True)
    report_rate("packed, with dropout", lambda: packed_rate(dataset, models, dropout=0.1))
    report_rate("packed, 1,024 models", lambda: packed_rate(dataset, 4 * models))
    if arguments.compile:
        report_rate("packed, 256 models, compiled", lambda: packed_rate(dataset, models, compiled=True))
    if arguments.study:
        studies(sheet, folder, dataset, rates[PACKED])
    faulthandler.cancel_dump_traceback_later()
    return {"best": best, "rates": rates, "device": torch.cuda.get_device_name(0)}


def studies(sheet: Sheet, folder: Path, dataset: Dataset, rate: float) -> None:
    """A whole study on the device: trials per hour with records, validation and metrics."""
    epochs, one = 2, [Slot((), (0,))]
    packs: Way = lambda settings, s: PackExecutor(s.folder, settings, one)  # noqa: E731
    seconds, _ = study(folder / "packs", template(dataset, 256, epochs, 256), packs)
    sheet.state("a study of 256 trials, packed: trials/hour", 3600 * 256 / seconds, f"({seconds:.1f} s)")
    steps = 256 * epochs * -(-dataset.splits["train"] // 64)
    sheet.state("of which steps", steps / rate, "s")


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    if arguments.gpu:
        return on_device(sheet, folder, arguments)
    return on_processor(sheet, folder, arguments.quick, arguments.rounds)


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="of all ways in turns, on a processor")
    parser.add_argument("--gpu", action="store_true", help="on an NVIDIA device instead")
    parser.add_argument("--budget", type=float, default=100.0, help="seconds after which nothing more is started")
    parser.add_argument("--study", action="store_true", help="a whole study too")
    parser.add_argument("--compile", action="store_true", help="a pack with train.compile too")
    sys.exit(main(measure, parser))
