"""The particle-flow workload on processors and on a GPU: do they agree, and does a GPU give the same bits again?

`clew bench particleflow --deterministic --seeds N` with the same events, weights and order on both. Bars: masked
accuracies on the validation events within 0.1% between models trained on each (the mean over seeds), and between the
answers of one model on both. Stated: the share of elements that both put into different bins and that they tell
another class, how far training losses drift apart, and whether a second run on the GPU has the first one's losses.

Without a GPU, `--here` compares one thread with two in the place of devices, to find mistakes in this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet, main, options

from clew.bench import workload
from clew.bench.attempt import Attempt
from clew.bench.outcome import Result
from clew.bench.terms import ACCURACY, WorkloadConfig

BAR = 0.1
"""Percent."""
SIDES = ("processors", "GPU", "GPU again")
ORDER = (1, 2, 0)
"""The fast ones first."""


def config(arguments: argparse.Namespace, side: str) -> WorkloadConfig:
    """Of one side; the last looks at bits alone, for which a seed is enough."""
    given = {name: getattr(arguments, name) for name in ("events", "epochs", "batch_size")}
    given |= {"seeds": 1 if side == SIDES[2] else arguments.seeds, "settings": tuple(arguments.set or ())}
    first = side == SIDES[0]
    own = {"gpus": 0, "threads": 1 if first else 2} if arguments.here else {"gpus": int(not first)}
    return WorkloadConfig(deterministic=True, **given, **own)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    if not torch.accelerator.is_available() and not arguments.here:
        print("skipped: torch finds no accelerator here")
        return {}
    found: dict[str, Result] = {}
    for side in (SIDES[place] for place in ORDER):
        found[side] = workload.run(config(arguments, side), folder / side.replace(" ", "-"))
        print(f"# {side}: {json.dumps([_told(each) for each in found[side].good])}", flush=True)
    first, second, again = (found[side].good for side in SIDES)
    gaps = [(b.last(ACCURACY) or 0.0) - (a.last(ACCURACY) or 0.0) for a, b in zip(first, second, strict=True)]
    drifts = [np.abs(np.array(b.losses) / np.array(a.losses) - 1) for a, b in zip(first, second, strict=True)]
    asked = found[SIDES[1]].bins or {}
    sheet.bar(
        "trained on each: gap of masked accuracy, mean of seeds", 100 * abs(float(np.mean(gaps))), BAR, "%", lower=True
    )
    sheet.state("the largest of a seed", 100 * float(np.abs(gaps).max()), "%")
    sheet.state("training loss, largest drift of a step", 100 * float(max(each.max() for each in drifts)), "%")
    sheet.bar("one model on both: gap of masked accuracy", 100 * asked["accuracy_gap"], BAR, "%", lower=True)
    sheet.state("elements in another bin", 1e6 * asked["share_of_elements_that_flip"], "in a million")
    sheet.state("elements told another class", 1e6 * asked["share_told_another_class"], "in a million")
    sheet.bar("GPU twice, share of losses with the same bits", _same(second[0], again[0]), 1.0, "")
    told = {side: [_told(each) for each in result.good] for side, result in found.items()}
    return {"sides": told, "gaps": gaps, "agreement": asked, "here": arguments.here, "events": arguments.events}


def _told(each: Attempt) -> dict[str, Any]:
    return {"seed": each.seed, "accuracy": each.last(ACCURACY), "events_per_second": each.events_per_second}


def _same(one: Attempt, other: Attempt) -> float:
    return float(np.mean(np.array(one.losses) == np.array(other.losses)))


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--events", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help="one thread against two, without a GPU")
    parser.add_argument("--set", action="append", help="a setting more")
    sys.exit(main(measure, parser))
