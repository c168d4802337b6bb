"""The efficiency that no division of whole events among ranks can exceed, and that of clew's own division.

A step ends when the slowest rank has finished, and an event is computed by one rank. So a step takes at least as long
as its largest event, and at least its share of all events. The costs are those of `Recipe.sample_costs`; what a step
costs in addition to its events is not counted, so real efficiencies are lower. Nothing is trained: this is counting,
and its result is the same on every machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _contest import Sheet, main, options
from _scale_training import BatchCosts, TrainingPoint

import clew
from clew.data.dataset.balance import divide_by_cost
from clew.data.prepare.generate import generate
from clew.recipe import find


def greedy(costs: BatchCosts, steps: int, ranks: int) -> float:
    """Return the efficiency of clew's division."""
    batches = [costs.of(step) for step in range(1, steps)]
    slowest = [np.bincount(divide_by_cost(each, ranks), each, ranks).max() for each in batches]
    return float(sum(each.sum() for each in batches) / ranks / sum(slowest))


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    recipe = find("tracking")()
    if arguments.dataset:
        data = clew.Dataset(arguments.dataset)
    else:
        generate(recipe, 5_000 if arguments.quick else 50_000, 1, folder / "raw")
        cache = str(folder / "cache")
        data = clew.prepare(recipe, input=[str(folder / "raw")], output=str(folder / "dataset"), cache=cache)
    events = data.splits["train"]
    for bucket in (None, "node"):
        for mode in ("own", "per rank"):
            for ranks in (2, 4, 8, 16):
                point = TrainingPoint("tracking", mode, ranks, bucket)
                costs = BatchCosts(recipe, point.config(), data)
                steps = events // point.batch
                name = f"batch {point.batch}, {ranks} ranks{', bucketed' if bucket else ''}"
                sheet.state(f"{name}: any division, at most", costs.bound(steps - 1, ranks), "")
                sheet.state(f"{name}: clew's division", greedy(costs, steps, ranks), "")
    quantiles = np.quantile(costs.costs, (0.5, 0.9, 0.99, 0.999, 1)) / costs.costs.mean()
    for share, value in zip((50, 90, 99, 99.9, 100), quantiles, strict=True):
        sheet.state(f"cost of an event, {share}% are below", value, "times the mean")
    return {"events": events}


if __name__ == "__main__":
    parser = options(__doc__, "5,000 events instead of 50,000")
    parser.add_argument("--dataset", help="a dataset of tracking (default: synthetic events)")
    sys.exit(main(measure, parser))
