"""F1 of the tracking GraphNet against time: plain, bucketed, on 2 and on 4 ranks. Figure 3 of the original, redone.

    python benchmarks/figure3.py --output figure3.html [--quick] [--json FILE]

Edges are evaluated on held-out events after every epoch. The time is that of training without validations, from the
records of the run. Seed, batch size and samples are the same in each; one thread per rank.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any

from _contest import Sheet, main, options

import clew
from clew import Dataset, Run, figure
from clew.recipe import find
from clew.runs.environment import allowed_cores
from clew.runs.html_page import write_page

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bucketed": {"loading": {"bucket": "edge"}},
    "2 ranks": {"workers": 2},
    "4 ranks": {"workers": 4},
}

Curve = tuple[list[float], list[float]]


def data(folder: Path, events: int) -> Dataset:
    recipe = find("tracking")()
    for _ in recipe.generate(events, 3, folder / "events"):
        pass
    settings: dict[str, Any] = {"input": [str(folder / "events")], "cache": str(folder / "cache")}
    return clew.prepare(recipe, output=str(folder / "dataset"), **settings)


def curve(run: Run) -> Curve:
    """Seconds of training and F1 after each epoch."""
    seconds, x, y = 0.0, [], []
    for record in run.history():
        if record["kind"] == "step":
            seconds += record["seconds"]
        elif record["kind"] == "validation":
            x.append(seconds)
            y.append(record["metrics"]["f1"])
    return x, y


def drawn(curves: Mapping[str, Curve]) -> dict[str, Any]:
    lines = [
        figure.line(x, y, name, colour=place, mode="lines+markers")
        for place, (name, (x, y)) in enumerate(curves.items())
    ]
    axes: dict[str, Any] = {"x": "time of training (s), validations left out", "y": "F1 of edges, held-out events"}
    axes |= {"xaxis": {"rangemode": "tozero"}, "yaxis": {"range": [0, 1]}}
    return figure.figure(lines, title="A point an epoch", **axes)


def label(name: str, settings: Mapping[str, Any]) -> str:
    """Return the name of a curve. It mentions if ranks shared cores."""
    cores = allowed_cores()
    return f"{name} on {cores} cores" if settings.get("workers", 1) > cores else name


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    epochs, events = (3, 400) if arguments.quick else (12, 2000)
    curves: dict[str, Curve] = {}
    dataset = data(folder, events)
    for name, settings in WAYS.items():
        train_settings: dict[str, Any] = {"epochs": epochs, "threads": 1, "batch_size": 32, **settings}
        run = clew.train("tracking", dataset, output=folder / name.replace(" ", "-"), **train_settings)
        curves[label(name, settings)] = x, y = curve(run)
        sheet.state(f"{name}: {epochs} epochs", x[-1], "s")
        sheet.state(f"{name}: F1 at the end", y[-1], "")
        sheet.state(
            f"{name}: F1 of 0.8 reached after", next((t for t, f1 in zip(x, y, strict=True) if f1 >= 0.8), nan), "s"
        )
    facts = (
        f"{events} events, {epochs} epochs, batches of 32 over all ranks, one thread a rank, {allowed_cores()} cores"
    )
    write_page(arguments.output, "The tracking GraphNet, four ways", facts, [("", "", [drawn(curves)])])
    print(f"{arguments.output}")
    return {"events": events, "curves": {name: {"seconds": x, "f1": y} for name, (x, y) in curves.items()}}


if __name__ == "__main__":
    parser = options(__doc__, "fewer events and epochs")
    parser.add_argument("--output", type=Path, default=Path("figure3.html"))
    sys.exit(main(measure, parser))
