"""How training scales on the cores of one machine: tracking and particle flow, one thread per rank, all-reduce.

Each size trains twice: with the recipe's own batch over all ranks, and with a batch of 32 per rank. Speeds and shares
of the time come from the records and timelines of the runs, by the code of `clew bench scale`. The first step and
batches that are not full do not count. At 8 ranks (or the largest size), torch's DistributedDataParallel (gloo) trains
on the same global batches, which it shares by number of events. The bars are those of 8 and 16 ranks, one core each.
Measurements for which no time is left are skipped, and named.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _contest import Sheet, main, options
from _ddp_ranks import rank_of_torch

import clew
from clew import Dataset, Run
from clew.bench.scaling.measurement import PARTS, time_shares
from clew.data.prepare.generate import generate
from clew.jobs.local_workers import run_local
from clew.recipe import find
from clew.runs import timeline
from clew.settings import load_settings

TASKS = ("tracking", "particleflow")
PER_RANK = 32
BAR_RANKS = 8
PRELOAD = ["torch._dynamo", "torch.distributed", "clew.training.loop"]


@dataclass(frozen=True)
class Point:
    """One measurement: a task, a number of ranks, and the size of the global batch."""

    task: str
    mode: str
    ranks: int
    batch: int

    def __str__(self) -> str:
        return f"{self.task}, {self.mode}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"


@dataclass
class Budget:
    """The time that is left, and the estimated seconds of an event on one rank."""

    end: float
    points: int
    seconds_per_event: float = 0.0

    def steps(self, point: Point) -> int:
        """The number of steps that fit into an equal share of the time; 0 if not even three do."""
        left = self.end - time.monotonic()
        step = self.seconds_per_event * point.batch / min(point.ranks, point.batch)
        share = left / max(self.points, 1) - 4  # processes start, load, validate and save
        self.points -= 1
        return 0 if 3 * step > left else min(max(3, int(share / step)), 400)


def prepare(task: str, largest: int, folder: Path) -> Dataset:
    """Synthetic events: at least two batches of the largest size."""
    recipe = find(task)()
    events = max(int(1.25 * PER_RANK * largest), 64) * (4 if task == "tracking" else 1)
    generate(recipe, events, 1, folder / "raw")
    inputs = [str(path) for path in sorted((folder / "raw").iterdir())]
    split = {"train": 0.94, "val": 0.06}
    return clew.prepare(recipe, input=inputs, output=str(folder / "dataset"), split=split)


def train(point: Point, data: Dataset, folder: Path, steps: int) -> tuple[float, dict[str, float]]:
    """Train with clew. Return events per second, and the shares of the time."""
    wanted = {"batch_size": point.batch, "workers": point.ranks, "steps": steps, "threads": 1, "log_every": 1}
    fixed = {"epochs": 100_000, "monitor_seconds": None, "minutes": 60, "device": "cpu"}
    values = [f"train.{name}={json.dumps(value)}" for name, value in (wanted | fixed).items()]
    settings = load_settings(point.task, values)
    run = clew.train(settings.recipe, data, config=settings.train, output=folder)
    return full_steps(run, point.batch)


def full_steps(run: Run, batch: int) -> tuple[float, dict[str, float]]:
    """Return the speed and the shares of all steps on full batches but the first."""
    records = list(run.records("rank-0", "step"))
    before = [0, *(record["samples"] for record in records)]
    sizes = [after - earlier for earlier, after in itertools.pairwise(before)]
    full = [place for place, size in enumerate(sizes) if size == batch and place]
    seconds = sum(records[place]["seconds"] for place in full)
    spans = {rank: each[np.isin(each["step"], full)] for rank, each in timeline.traces(run).items()}
    return batch * len(full) / seconds, time_shares(spans)


def train_torch(point: Point, data: Dataset, folder: Path, steps: int) -> float:
    """Train with torch's DistributedDataParallel. Return events per second."""
    folder.mkdir()
    arguments = (point.task, str(data.path), point.batch, steps, folder)
    run_local(rank_of_torch, arguments, point.ranks, preload=PRELOAD)
    return point.batch / float((folder / "seconds").read_text())


def points_of(task: str, sizes: list[int]) -> list[Point]:
    own = load_settings(task, ()).train.size
    own_points = [Point(task, "own batch", ranks, own) for ranks in sizes]
    return own_points + [Point(task, f"batch {PER_RANK} per rank", ranks, PER_RANK * ranks) for ranks in sizes]


def report(sheet: Sheet, point: Point, speeds: Mapping[Point, float], shares: Mapping[str, float]) -> None:
    """Add a measurement to the sheet, with its bars."""
    first = next((p for p in speeds if (p.task, p.mode, p.ranks) == (point.task, point.mode, 1)), None)
    sheet.state(f"{point}", speeds[point], "events/s")
    for part in PARTS:
        sheet.state(f"{point}: {part}", 100 * shares[part], "% of the time")
    if first is None or point.ranks == 1:
        return
    efficiency = speeds[point] / speeds[first] / point.ranks
    own = point.mode == "own batch"
    limit = {(BAR_RANKS, True): 0.45, (BAR_RANKS, False): 0.75, (16, False): 0.6}.get((point.ranks, own))
    if limit is None:
        sheet.state(f"{point}: efficiency", efficiency, "")
    else:
        sheet.bar(f"{point}: efficiency", efficiency, limit, "")
    if point.ranks == BAR_RANKS:
        sheet.bar(f"{point}: waiting", 100 * shares["wait"], 8, "% of the time", lower=True)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    end = time.monotonic() + 60 * (arguments.minutes or (2 if arguments.quick else 8))
    sizes = sorted({1, *map(int, arguments.ranks.split(","))}) if arguments.ranks else default_sizes()
    compared = BAR_RANKS if BAR_RANKS in sizes else sizes[-1]
    datasets = {}
    for task in arguments.tasks.split(","):
        (folder / task).mkdir()
        datasets[task] = prepare(task, sizes[-1], folder / task)
    plans = {task: points_of(task, sizes) for task in datasets}
    skipped, speeds = [], dict[Point, float]()
    for number, (task, points) in enumerate(plans.items()):
        budget = Budget(time.monotonic() + (end - time.monotonic()) / (len(plans) - number), len(points) + 2)
        probe, _ = train(points[0], datasets[task], folder / task / "probe", 3)
        budget.seconds_per_event = 1 / probe
        for place, point in enumerate(points):
            data, output = datasets[task], folder / task / f"run-{place}"
            steps = budget.steps(point)
            if not steps:
                skipped.append(str(point))
                continue
            speeds[point], shares = train(point, data, output, steps)
            if point.ranks == 1:
                budget.seconds_per_event = 1 / speeds[point]
            report(sheet, point, speeds, shares)
            if point.ranks == compared > 1 and point.batch >= compared:
                budget.points -= 1
                speed = train_torch(point, data, folder / task / f"torch-{place}", steps)
                name, times = f"{point}: clew against DDP", speeds[point] / speed
                if compared == BAR_RANKS:
                    sheet.bar(name, times, 1.3, "times")
                else:
                    sheet.state(name, times, "times")
    for name in skipped:
        print(f"  {name}: skipped, no time left")
    return {"ranks": sizes, "skipped": skipped, "cores": len(os.sched_getaffinity(0))}


def default_sizes() -> list[int]:
    """1, 2, 4, ... up to the number of cores, at most 16."""
    cores = len(os.sched_getaffinity(0))
    return [size for size in (1, 2, 4, 8, 16) if size <= max(cores, 1)]


if __name__ == "__main__":
    parser = options(__doc__, "two minutes instead of eight")
    parser.add_argument("--minutes", type=float, help="time limit in total (default 8)")
    parser.add_argument("--ranks", help="numbers of ranks, for example 1,2,4 (default: powers of two up to the cores)")
    parser.add_argument("--tasks", default=",".join(TASKS), help="tasks, separated by commas")
    sys.exit(main(measure, parser))
