"""How clew scales on the cores of one machine, within a limit of time: preparing, training, asynchronous training.

    python benchmarks/scale_cores.py --minutes 7 --json scaling.json
    python benchmarks/scale_cores.py --tables scaling.json

Measurements are made in order of their value, and the file is written after each one. Those for which no time is left
are skipped and named. Nothing else should run on the cores that are used: `taskset` chooses them, and core seconds are
counted for them, whatever runs there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from _scale_prepare import Way, again, disk_speed, prepare
from _scale_tables import tables
from _scale_training import STEPS, TrainingPoint, copies, masters, ranks, small_dataset, started_and_resumed

from clew.data.prepare.generate import generate
from clew.recipe import find
from clew.runs.environment import capture

EVENTS = 250_000
RESERVE = 4.0
"""Seconds at the end in which nothing is started."""


@dataclass
class Study:
    """The results so far, and the time that is left."""

    target: Path
    end: float
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return self.end - RESERVE - time.monotonic()

    def measure(self, group: str, name: str, needed: float, work: Callable[[], Any]) -> Any:
        """Make one measurement and write the file. Return None if it failed, or if less than `needed` seconds are
        left."""
        if self.left < needed:
            self.results.setdefault("skipped", []).append(f"{group}: {name}")
            print(f"{group}: {name}: skipped, {self.left:.0f} s are left", flush=True)
            return None
        start, result = time.monotonic(), None
        try:
            result = work()
        except Exception as error:
            traceback.print_exc()
            self.results.setdefault("failed", []).append(f"{group}: {name}: {error}")
        else:
            self.results.setdefault(group, []).append(result)
        print(f"{group}: {name}: {time.monotonic() - start:.1f} s: {json.dumps(result)}", flush=True)
        self.save()
        return result

    def save(self) -> None:
        """Write the file, completely or not at all."""
        partial = self.target.with_suffix(".partial")
        partial.write_text(json.dumps(self.results, indent=1) + "\n")
        partial.replace(self.target)


def preparing(study: Study, folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Measure preparing with all executors. Return the raw files."""
    largest = max(arguments.processes)
    start = time.monotonic()
    generate(find("tracking")(), arguments.events, 1, folder / "raw")
    files = sorted(str(path) for path in (folder / "raw").iterdir())
    study.results["generate"] = {"events": arguments.events, "seconds": round(time.monotonic() - start, 2)}
    for processes in (1, largest):
        study.measure("disk", f"{processes}", 5, partial(disk_speed, folder, processes))
    # the first run compiles; the second one tells how many events fit into the time
    per_file = arguments.events / len(files)
    first_files = files[: max(1, min(len(files) // 5, int(20_000 / per_file)))]
    few_events = round(per_file * len(first_files))
    _subset(folder / "few", first_files)
    study.measure("warm", "compile", 20, lambda: prepare(Way("processes", 1), folder / "few", folder, few_events, 120))
    first = study.measure(
        "warm", "one process", 20, lambda: prepare(Way("processes", 1), folder / "few", folder, few_events, 120)
    )
    speed = few_events / first["seconds"] if first else 2000.0
    chosen = files[: max(1, min(len(files), int(arguments.share * study.left * speed / per_file)))]
    _subset(folder / "chosen", chosen)
    count = round(per_file * len(chosen))
    expected = count / speed
    ways = [Way("processes", largest), Way("processes", 1)]
    ways += [Way("processes", n) for n in arguments.processes if n not in (1, largest)]
    ways += [Way("mpi", largest), Way("dask cluster", largest), Way("dask", largest)]
    for way in ways:
        seconds = 4 + 1.3 * expected / min(2 * way.processes / 3 if way.processes > 1 else 1, way.processes)
        work = partial(prepare, way, folder / "chosen", folder, count, 3 * seconds + 20)
        if study.measure("prepare", str(way), seconds, work) and way == ways[0]:
            study.measure("again", "nothing changed", 5, lambda: round(again(folder / "chosen", folder), 3))
    return first_files


def _subset(folder: Path, files: list[str]) -> None:
    """Make a folder of links to files."""
    folder.mkdir()
    for file in files:
        os.link(file, folder / Path(file).name)


def training(study: Study, folder: Path, raw: list[str], arguments: argparse.Namespace) -> None:
    """Measure synchronous training of both tasks, then masters and workers, then many ranks."""
    largest = max(arguments.ranks)
    data = {"tracking": small_dataset("tracking", folder / "tracking", largest, raw)}
    ways = (("per rank", None), ("own", None), ("per rank", "node"), ("own", "node"))
    for point in [TrainingPoint("tracking", mode, n, bucket) for mode, bucket in ways for n in arguments.ranks]:
        _rank_point(study, data, point, folder, arguments)
    for count in arguments.ranks:
        work = partial(copies, "tracking", count, data["tracking"], folder, 2 * arguments.seconds)
        study.measure("copies", f"{count} independent trainings", 2 * arguments.seconds + 8, work)
    for workers in sorted({1, *(n - 1 for n in arguments.ranks if n > 1)}):
        name = f"1 master, {workers} workers"
        work = partial(masters, "downpour", workers, data["tracking"], folder, arguments.seconds)
        study.measure("asynchronous", name, 2 * arguments.seconds + 8, work)
    for task in ("particleflow", "lartpc"):
        if study.left > 60:
            data[task] = small_dataset(task, folder / task, largest, [])
            for ranks_ in arguments.ranks:
                _rank_point(study, data, TrainingPoint(task, "per rank", ranks_), folder, arguments)
    for rule in ("easgd", "diloco"):
        work = partial(masters, rule, largest - 1, data["tracking"], folder, arguments.seconds)
        study.measure("asynchronous", f"{rule}, {largest - 1} workers", 2 * arguments.seconds + 8, work)
    oversubscribed = 4 * largest
    study.measure(
        "many ranks",
        f"{oversubscribed} ranks",
        45,
        partial(started_and_resumed, oversubscribed, data["tracking"], folder),
    )


def _rank_point(
    study: Study, data: dict[str, Any], point: TrainingPoint, folder: Path, arguments: argparse.Namespace
) -> None:
    compared = point.ranks == arguments.compared and point.ranks > 1
    needed = 50.0 if point.task in STEPS else arguments.seconds * (2 if compared else 1) + 8
    work = partial(ranks, point, data[point.task], folder, arguments.seconds, compared=compared)
    study.measure("training", str(point), needed, work)


def _numbers(text: str) -> list[int]:
    return sorted({1, *map(int, text.split(","))})


def main() -> int:
    """Run the study or print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=7.0, help="limit in total (default 7)")
    parser.add_argument("--json", type=Path, default=Path("scaling.json"), help="the results (default scaling.json)")
    parser.add_argument("--tables", type=Path, help="print the tables of a file with results, and measure nothing")
    parser.add_argument("--events", type=int, default=EVENTS, help=f"events to prepare at most (default {EVENTS:,})")
    parser.add_argument("--processes", type=_numbers, default=[1, 4, 16], help="of prepare (default 1,4,16)")
    parser.add_argument("--ranks", type=_numbers, default=[1, 8, 16], help="of training (default 1,8,16)")
    parser.add_argument("--seconds", type=float, default=7.0, help="of steps per training (default 7)")
    parser.add_argument("--share", type=float, default=0.2, help="of the time for one process that prepares")
    parser.add_argument("--only", choices=("prepare", "training"), help="one half of the study")
    parser.add_argument("--folder", type=Path, help="where events are written (default: a temporary folder)")
    arguments = parser.parse_args()
    if arguments.tables:
        print(tables(json.loads(arguments.tables.read_text())))
        return 0
    arguments.compared = 8 if 8 in arguments.ranks else max(arguments.ranks)
    study = Study(arguments.json, time.monotonic() + 60 * arguments.minutes)
    load = os.getloadavg()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        study.results["conditions"] = {"environment": capture(), "load": load, "cores": len(os.sched_getaffinity(0))}
        if arguments.only == "training":
            generate(find("tracking")(), 10_000, 1, Path(folder) / "raw")
            raw = sorted(str(path) for path in (Path(folder) / "raw").iterdir())
        else:
            raw = preparing(study, Path(folder), arguments)
        if arguments.only != "prepare":
            training(study, Path(folder), raw, arguments)
    study.save()
    print(tables(study.results))
    return int(bool(study.results.get("failed")))


if __name__ == "__main__":
    sys.exit(main())
