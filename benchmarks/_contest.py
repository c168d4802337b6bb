"""Shared by benchmarks: contestants that take turns, a sheet of results, and the command line.

No torch at module level: `prepare.py` measures the memory of processes forked from its own.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _surroundings import Surroundings

from clew.runs.environment import capture

WARM = 1
"""Rounds that are not counted."""
Turn = Callable[[], None]
Times = dict[str, list[float]]


class Over(BaseException):
    """Raised in a contestant to end it after its last block."""


class Contestant:
    """A loop in a thread that runs only when it is its turn. `settle` waits for the pending work of a device."""

    def __init__(
        self,
        loop: Callable[[Turn], None],
        steps: int,
        settle: Turn = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._loop, self._steps, self._lead, self._settle = loop, steps, steps // 10, settle
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._count, self._begun, self._seconds, self._over = 0, 0.0, 0.0, False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._wait()  # until it is before its first step

    def turn(self) -> None:
        """Called by the loop at the start of every step.

        The clock starts after a few steps, when caches are warm, because a real training does not restart every 20
        steps.
        """
        place = self._count % (self._lead + self._steps)
        if place in (0, self._lead):
            self._settle()
        if place == 0:
            self._seconds = self._clock() - self._begun
            self._back.release()
            self._go.acquire()
            if self._over:
                raise Over
        if place == self._lead:
            self._begun = self._clock()
        self._count += 1

    def block(self) -> float:
        """Run one block, and return its time in seconds."""
        self._go.release()
        self._wait()
        return self._seconds

    def end(self) -> None:
        self._over = True
        self._go.release()
        self._thread.join()

    def _wait(self) -> None:
        self._back.acquire()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        import torch

        torch.set_num_threads(1)
        try:
            self._loop(self.turn)
        except Over:
            pass
        except BaseException as error:
            self._error = error
        self._back.release()


def alternate(blocks: Mapping[str, Callable[[], float]], rounds: int) -> Times:
    """Return the seconds of every block of every contestant. The order of contestants changes every round."""
    times: Times = {name: [] for name in blocks}
    rng = np.random.default_rng(1)
    for _ in range(rounds + WARM):
        for name in rng.permutation(list(blocks)).tolist():
            times[name].append(blocks[name]())
    return {name: each[WARM:] for name, each in times.items()}


def in_turns(
    loops: Mapping[str, Callable[[Turn], None]],
    steps: int,
    rounds: int,
    settle: Turn = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Do the same with loops, in blocks of `steps` steps."""
    contestants = {name: Contestant(loop, steps, settle, clock) for name, loop in loops.items()}
    try:
        return alternate({name: each.block for name, each in contestants.items()}, rounds)
    finally:
        for each in contestants.values():
            each.end()


def seconds(work: Callable[[], Any]) -> float:
    """Return how long a function takes, in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def quartile(times: Sequence[float]) -> float:
    return float(np.percentile(times, 25))


@contextmanager
def timed(owner: Any, name: str) -> Iterator[list[tuple[float, float]]]:
    """Record the start and end time of every call of a function within the `with` block."""
    function, spans = getattr(owner, name), list[tuple[float, float]]()

    def call(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            spans.append((start, time.perf_counter()))

    setattr(owner, name, call)
    try:
        yield spans
    finally:
        setattr(owner, name, function)


@contextmanager
def peak_of_children(every: float = 0.05, *, unshared: bool = False) -> Iterator[list[float]]:
    """Give the largest memory of any process started within, in MB.

    Args:
        every: Seconds between two looks at all processes.
        unshared: Whether memory that a process shares with others does not count.
    """
    peak, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(every):
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    used = child.memory_full_info().uss if unshared else child.memory_info().rss
                    peak[0] = max(peak[0], used / 1e6)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


class Sheet:
    """The results of a benchmark, printed as they come."""

    def __init__(self) -> None:
        self.bars: list[dict[str, Any]] = []
        self.stated: dict[str, float] = {}

    def bar(self, name: str, value: float, limit: float, unit: str, *, lower: bool = False) -> None:
        """Add a result with a limit that it must reach, or with `lower` must not exceed."""
        ok = value <= limit if lower else value >= limit
        self.bars.append({"name": name, "value": value, "bar": limit, "unit": unit, "ok": bool(ok)})
        sign, word = "<=" if lower else ">=", "ok" if ok else "MISSED"
        print(f"{name:58} {value:12,.3f} {unit:18} {sign} {limit:<8,g} {word}", flush=True)

    def state(self, name: str, value: float, unit: str) -> None:
        """Add a result without a limit."""
        self.stated[f"{name} [{unit}]" if unit else name] = value
        print(f"  {name:56} {value:12,.3f} {unit}", flush=True)

    @property
    def ok(self) -> bool:
        return all(each["ok"] for each in self.bars)


Measure = Callable[[Sheet, Path, argparse.Namespace], Mapping[str, Any]]
"""Fills the sheet, with a working folder; returns conditions in addition to those of every benchmark."""


def options(about: str | None, quick: str = "fewer events and repetitions") -> argparse.ArgumentParser:
    """Return a parser with the two options of every benchmark. A benchmark may add its own."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, help="write bars and conditions to this file")
    return parser


def main(measure: Measure, parser: argparse.ArgumentParser) -> int:
    """Run a benchmark and write its results. Returns 0 if all limits are met."""
    arguments = parser.parse_args()
    sheet, start, load = Sheet(), time.monotonic(), os.getloadavg()
    with Surroundings() as around, tempfile.TemporaryDirectory() as folder:
        more = measure(sheet, Path(folder), arguments)
    print(f"  {around.text()}", flush=True)
    if arguments.json:
        conditions = {
            "quick": arguments.quick,
            **more,
            "seconds": round(time.monotonic() - start),
            "load_average": {"before": load, "after": os.getloadavg()},
            "surroundings": around.report(),
            "environment": capture(),
            "stated": sheet.stated,
        }
        arguments.json.write_text(json.dumps({"bars": sheet.bars, "conditions": conditions}, indent=1) + "\n")
    return int(not sheet.ok)
