"""How fast raw events become a dataset.

The BES-III sample (CLEW_TEST_DATA, default ../shared/data; without it, synthetic events of the same kind) is tiled to
about 10,000 events. The rival, Ariadne, is not on PyPI: it is compared by the figure recorded for it on a machine like
this one, 15 to 19 events per CPU-second for its whole prepare with one process. uproot is measured here, in turn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _contest import Sheet, alternate, main, options, peak_of_children, quartile, seconds

import clew
from clew import readers
from clew.recipe import Recipe, find
from clew.recipes.tracking.simulate_bes3 import simulate, write_text

SAMPLE = Path(os.environ.get("CLEW_TEST_DATA", "../shared/data")) / "tracking/ariadne/cgem_50_events.txt"
ARIADNE = 19.0


def tiled(path: Path, events: int) -> int:
    """Write the repeated sample with continuous event numbers; return the number of events."""
    if not SAMPLE.is_file():
        write_text(path, simulate(events, seed=1))
        return events
    rows = [line.split("\t", 1) for line in SAMPLE.read_text().splitlines()]
    size = int(rows[-1][0]) + 1
    copies = max(events // size, 1)
    with path.open("w") as stream:
        for copy in range(copies):
            stream.writelines(f"{int(number) + size * copy}\t{rest}\n" for number, rest in rows)
    return size * copies


def prepare(source: Path, folder: Path, workers: int, *, verify: bool = True) -> tuple[int, float, float]:
    """One cold preparation, verified on request: events, CPU seconds of this process, wall seconds."""
    for name in ("dataset", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)
    cpu, wall = time.process_time(), time.perf_counter()
    dataset = clew.prepare(
        "tracking",
        input=[str(source)],
        output=str(folder / "dataset"),
        cache=str(folder / "cache"),
        workers=workers,
    )
    if verify:
        dataset.verify()
    return sum(dataset.splits.values()), time.process_time() - cpu, time.perf_counter() - wall


def warm(source: Path, folder: Path) -> float:
    """Wall seconds of the whole command when nothing has changed."""
    command = [sys.executable, "-c", "from clew.cli.main import run; run()", "prepare", "tracking"]
    start = time.perf_counter()
    environment = {**os.environ, "CLEW_CACHE": str(folder / "cache")}
    command += ["--input", str(source), "--output", str(folder / "dataset")]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    return time.perf_counter() - start


def root_ratio(folder: Path, events: int, blocks: int) -> tuple[float, float]:
    """clew's reader over uproot alone on the same branches, and uproot over itself; 25th percentiles of blocks."""
    import awkward as ak
    import uproot

    rng = np.random.default_rng(1)
    counts = rng.poisson(40, events)
    columns = {name: ak.unflatten(rng.normal(size=counts.sum()).astype(np.float32), counts) for name in "abcd"}
    path = folder / "events.root"
    with uproot.recreate(path) as file:
        file.mktree("tree", {**columns, "number": np.arange(events)})
    names = [*"abcd", "number"]

    def alone() -> None:
        with uproot.open(path) as file:
            file["tree"].arrays(names)

    def ours() -> None:
        for table in readers.read(f"{path}:tree", columns=names, chunk=events):
            assert len(table)

    def thrice(work: Callable[[], None]) -> float:
        return sum(seconds(work) for _ in range(3))

    works = {"alone": alone, "ours": ours, "again": alone}
    times = alternate({name: partial(thrice, work) for name, work in works.items()}, blocks)
    taken = {name: quartile(each) for name, each in times.items()}
    return taken["ours"] / taken["alone"], taken["again"] / taken["alone"]


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    quick = arguments.quick
    tiled(folder / "small.txt", 10_000)
    runs = [prepare(folder / "small.txt", folder, 1) for _ in range(2 if quick else 6)][1:]
    speed = statistics.median(events / cpu for events, cpu, _ in runs)
    sheet.bar("whole prepare, one process", speed, 3000, "events/CPU-second")
    sheet.bar("against Ariadne's recorded figure (19)", speed / ARIADNE, 150, "times")
    recipe = find("tracking")()
    for _ in recipe.generate(10_000 if quick else 100_000, 1, folder / "many"):
        pass
    pairs = [
        [prepare(folder / "many", folder, workers, verify=False)[2] for workers in (1, 2)]
        for _ in range(1 if quick else 3)
    ]
    gain = statistics.median(one / two for one, two in pairs)
    sheet.bar("two processes against one, wall", gain, 1.8, "times")
    cached = min(warm(folder / "many", folder) for _ in range(3))
    sheet.bar("all cached, the whole command", cached, 1.0, "s", lower=True)
    shutil.rmtree(folder / "many")
    memory(sheet, recipe, folder, 20_000 if quick else 1_000_000)
    ratio, control = root_ratio(folder, 20_000 if quick else 100_000, 3 if quick else 9)
    sheet.bar("ROOT input against uproot alone", ratio, 1.3, "times", lower=True)
    sheet.state("control: uproot against itself", control, "times")
    return {"sample": SAMPLE.name if SAMPLE.is_file() else "synthetic"}


def memory(sheet: Sheet, recipe: Recipe, folder: Path, count: int) -> None:
    """The largest worker on many events."""
    for _ in recipe.generate(count, 2, folder / "huge"):
        pass
    with peak_of_children() as peak:
        prepare(folder / "huge", folder, 2)
    sheet.bar(f"peak memory of a worker, {count:,} events", peak[0], 500, "MB", lower=True)
    shutil.rmtree(folder / "huge")


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__)))
