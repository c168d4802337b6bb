"""F1 of the tracking GraphNet against time: plain, bucketed, on 2 and on 4 ranks. Figure 3 of the original, redone.

    python benchmarks/figure3.py --output figure3.html [--quick] [--json FILE]

Edges are judged on held-out events after every epoch; time is that of training alone, validations left out, as the
records tell it. The same seed, the same size of batches, the same samples in each; one thread a rank.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import clew
from clew import Dataset, Run, figure
from clew.ledger.environment import capture
from clew.ledger.page import write_page
from clew.recipe import find

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bucketed": {"loading": {"bucket": "edge"}},
    "2 ranks": {"workers": 2},
    "4 ranks": {"workers": 4},
}


def data(folder: Path, events: int) -> Dataset:
    recipe = find("tracking")()
    for _ in recipe.generate(events, 3, folder / "events"):
        pass
    given: dict[str, Any] = {"input": [str(folder / "events")], "cache": str(folder / "cache")}
    return clew.prepare(recipe, output=str(folder / "dataset"), **given)


def curve(run: Run) -> tuple[list[float], list[float]]:
    """Seconds of training and F1 after each epoch."""
    seconds, x, y = 0.0, [], []
    for record in run.history():
        if record["kind"] == "step":
            seconds += record["seconds"]
        elif record["kind"] == "validation":
            x.append(seconds)
            y.append(record["metrics"]["f1"])
    return x, y


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("figure3.html"))
    parser.add_argument("--quick", action="store_true", help="fewer events and epochs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    epochs = 3 if arguments.quick else 12
    curves: dict[str, tuple[list[float], list[float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dataset = data(folder, 400 if arguments.quick else 2000)
        for name, settings in WAYS.items():
            given: dict[str, Any] = {"epochs": epochs, "threads": 1, "batch_size": 32, **settings}
            run = clew.train("tracking", dataset, output=folder / name.replace(" ", "-"), **given)
            curves[name] = curve(run)
            print(f"{name:10} {curves[name][0][-1]:8.1f} s to F1 {curves[name][1][-1]:.3f}", flush=True)
    lines = [
        figure.line(x, y, name, colour=place, mode="lines+markers")
        for place, (name, (x, y)) in enumerate(curves.items())
    ]
    axes: dict[str, Any] = {"x": "seconds of training", "y": "F1", "yaxis": {"range": [0, 1]}}
    drawn = figure.figure(lines, title="F1 of edges against time", **axes)
    machine = capture()
    facts = f"{epochs} epochs, batches of 32 over all ranks, one thread a rank, {machine.get('cores', '?')} cores"
    write_page(arguments.output, "The GraphNet, four ways", facts, [("", "", [drawn])])
    print(f"{arguments.output}")
    if arguments.json:
        stated = {name: {"seconds": x, "f1": y} for name, (x, y) in curves.items()}
        result = {"bars": [], "conditions": {"quick": arguments.quick, "environment": machine, "stated": stated}}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
