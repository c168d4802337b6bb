"""The cost of observing a training: validation in a background process, tracing and monitoring, prediction.

The first is two whole trainings of the tracking GraphNet, one thread each, with as many held-out events as make
validation 28% of the inline one; they alternate, and the medians of their wall times are compared. The second is
`clew.train` against itself in alternating blocks of 20 steps of one process, with everything watched and with nothing;
25th percentiles, and a control of the unwatched against itself.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _contest import Sheet, in_turns, main, options, quartile
from _tasks import FlatTask, Task, flat_data, with_clew

import clew
from clew import Dataset, Run
from clew.recipe import find

SHARE = 0.28
"""The share of validation in the time of an inline run, in the original."""
NOTHING: dict[str, Any] = {"trace": False, "monitor_seconds": None}
ALL: dict[str, Any] = {"trace": True, "monitor_seconds": 1.0}


def events(folder: Path, count: int) -> Path:
    for _ in find("tracking")().generate(count, 1, folder / "events"):
        pass
    return folder / "events"


def split(folder: Path, source: Path, val: float, name: str) -> Dataset:
    shares = {"train": 1 - val, "val": val}
    settings: dict[str, Any] = {"input": [str(source)], "cache": str(folder / "cache"), "split": shares}
    return clew.prepare("tracking", output=str(folder / name), workers=1, **settings)


def train(data: Dataset, output: Path, epochs: int, validation: str) -> Run:
    settings: dict[str, Any] = {"epochs": epochs, "threads": 1, "batch_size": 32, "validation": validation, **NOTHING}
    return clew.train("tracking", data, output=output, **settings)


def seconds(run: Run) -> tuple[float, float]:
    """Wall time from the first step's plan to the end, and that of validations."""
    plan, end = run.last("plan"), run.last("end")
    assert plan is not None and end is not None
    return end["time"] - plan["time"], sum(record["seconds"] for record in run.records(kind="validation"))


def fitting(folder: Path, source: Path) -> tuple[Dataset, float]:
    """A split in which validation takes its share of an inline run, found in two steps; and the share it has."""
    val, share = 0.3, 0.0
    for attempt in range(3):
        data = split(folder, source, val, f"set-{attempt}")
        full, validation = seconds(train(data, folder / f"try-{attempt}", 2, "shared"))
        share = validation / full
        if abs(share - SHARE) < 0.02:
            break
        cost = (share / (1 - share)) / (val / (1 - val))  # of evaluating one event, in units of training one
        odds = SHARE / (1 - SHARE) / cost
        val = odds / (1 + odds)
    return data, share


def background_validation(sheet: Sheet, folder: Path, *, quick: bool) -> None:
    """Validation in a spare process against the same inline."""
    source = events(folder, 1600)
    data, share = fitting(folder, source)
    sheet.state("validation: share of an inline run", 100 * share, "%")
    walls: dict[str, list[float]] = {"shared": [], "background": []}
    for number in range(1 if quick else 4):
        for how, wall_times in walls.items():
            wall_times.append(seconds(train(data, folder / f"{how}-{number}", 10, how))[0])
    inline, background = (statistics.median(walls[how]) for how in ("shared", "background"))
    sheet.state("validation inline: wall time", inline, "s")
    sheet.state("validation beside: wall time", background, "s")
    sheet.bar("validation beside the training: wall time saved", 100 * (1 - background / inline), 20, "%")


def watched(sheet: Sheet, task: Task, folder: Path, rounds: int) -> None:
    """A training with tracing and monitoring against one without."""
    loops = {
        "unwatched": partial(with_clew, task, folder / "a", **NOTHING),
        "unwatched again": partial(with_clew, FlatTask(task.dataset), folder / "b", **NOTHING),
        "watched": partial(with_clew, FlatTask(task.dataset), folder / "c", **ALL),
    }
    times = in_turns(loops, task.steps, rounds)
    plain = quartile([*times["unwatched"], *times["unwatched again"]])
    control = quartile(times["unwatched"]) / quartile(times["unwatched again"])
    sheet.state("watching: control, unwatched against itself", control, "times")
    sheet.state("watching: microseconds a step", 1e6 * (quartile(times["watched"]) - plain) / task.steps, "us")
    sheet.bar("watching: throughput lost on an MLP", 100 * (1 - plain / quartile(times["watched"])), 2, "%", lower=True)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    torch.set_num_threads(1)
    rounds = 100 if arguments.quick else 400
    watched(sheet, FlatTask(flat_data(folder)), folder / "watched", rounds)
    background_validation(sheet, folder, quick=arguments.quick)
    return {"threads": 1, "blocks": rounds}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__)))
