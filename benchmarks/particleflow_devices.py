"""The particle-flow workload on processors and on a GPU: do they agree, and does a GPU give the same bits again?

Trainings of `clew bench particleflow --deterministic` with the same events, weights and order on both. Bars: masked
accuracies on the validation events within 0.1% between models trained on each (the mean over seeds), and between the
answers of one model on both; the same weights to start from; the same bits from a second training on the GPU. Stated:
the fraction of elements that are in different bins, the fraction with a different class, and the drift of the losses.

Where the machine with the GPU has no time for the processors' trainings, they are done on another machine and copied:

    python benchmarks/particleflow_devices.py --save FOLDER       # seeds that the folder lacks, each saved when done
    python benchmarks/particleflow_devices.py --against FOLDER    # with the events of the folder

Without a GPU, `--here` compares one thread with two in the place of devices, to find mistakes in this file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet, main, options

from clew import settings
from clew.bench.workload import inference_speed
from clew.bench.workload.config import ACCURACY, WorkloadConfig
from clew.bench.workload.event_data import EventData, EventRequest, dataset_checksum, make_event_data
from clew.bench.workload.results import WorkloadResult
from clew.bench.workload.runner import WorkloadRunner
from clew.bench.workload.training_run import WorkloadRun
from clew.data.dataset import Dataset
from clew.errors import DataError, WorkerError
from clew.runs import Run

BAR = 0.1
"""Percent."""
SIDES = ("processors", "GPU", "GPU again")


@dataclass
class Trained:
    """One seed on one side, and the outputs of its model for the validation events."""

    seed: int
    accuracy: float
    losses: list[float]
    events_per_second: float
    start: str
    """SHA-256 of the weights before the first step."""
    classes: list[int]
    device: str
    torch: str = torch.__version__

    def as_dict(self) -> dict[str, Any]:
        """The figures without long lists."""
        return {name: value for name, value in asdict(self).items() if name not in ("losses", "classes")}


def config(arguments: argparse.Namespace, side: str) -> WorkloadConfig:
    """The settings of one side."""
    first = side == SIDES[0]
    settings = {"gpus": 0, "threads": 1 if first else 2} if arguments.here else {"gpus": int(not first)}
    return WorkloadConfig(deterministic=True, **_request(arguments), **settings)


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    values = {name: getattr(arguments, name) for name in ("events", "epochs", "batch_size")}
    return {**values, "settings": tuple(arguments.set or ())}


def train(bench: WorkloadRunner, seed: int) -> Trained:
    """One seed.

    Raises:
        WorkerError: it failed.
    """
    workload_run = WorkloadRun(seed, 0, f"runs/seed-{seed}")
    bench.run([workload_run], bench.config.batch_size, f"seed {seed}")
    if workload_run.message:
        raise WorkerError(workload_run.message)
    outputs = inference_speed.benchmark_outputs(Run(bench.output / workload_run.run), bench.config)
    accuracy = workload_run.last(ACCURACY) or 0.0
    return Trained(
        seed,
        accuracy,
        workload_run.losses,
        workload_run.events_per_second,
        _start(bench.config, seed),
        outputs["class"].tolist(),
        workload_run.device,
    )


def _start(config: WorkloadConfig, seed: int) -> str:
    torch.manual_seed(seed)
    digest = hashlib.sha256()
    for name, values in sorted(
        settings.load_settings(config.recipe, config.recipe_settings).recipe.model().state_dict().items()
    ):
        digest.update(name.encode() + values.contiguous().numpy().tobytes())
    return digest.hexdigest()


def make_events(arguments: argparse.Namespace, folder: Path) -> EventData:
    """The events, by the seed."""
    workload = config(arguments, SIDES[0])
    recipe = settings.load_settings(workload.recipe, workload.recipe_settings).recipe
    return make_event_data(recipe, EventRequest(workload.events, workload.seed), folder)


def benches(arguments: argparse.Namespace, folder: Path, event_data: EventData) -> dict[str, WorkloadRunner]:
    """A folder for each side."""
    places = {side: folder / side.replace(" ", "-") for side in SIDES}
    return {
        side: WorkloadRunner(
            config(arguments, side), place, event_data, WorkloadResult({}, {}, {}, {}), lambda note: None
        )
        for side, place in places.items()
    }


def save(arguments: argparse.Namespace, folder: Path) -> None:
    """Train the missing seeds on processors."""
    saved: Path = arguments.save
    if not (saved / "facts.json").exists():
        event_data = make_events(arguments, folder)
        shutil.copytree(event_data.dataset.path, saved / "dataset")
        (saved / "facts.json").write_text(
            json.dumps({"asked": _request(arguments), "data": event_data.checksum}) + "\n"
        )
    bench = benches(arguments, folder, _carried(arguments, saved))[SIDES[0]]
    for seed in (seed for seed in range(arguments.seeds) if not (saved / f"seed-{seed}.json").exists()):
        trained = train(bench, seed)
        (saved / f"seed-{seed}.json").write_text(json.dumps(asdict(trained)) + "\n")
        print(json.dumps(trained.as_dict()), flush=True)


def _carried(arguments: argparse.Namespace, saved: Path) -> EventData:
    facts, dataset = json.loads((saved / "facts.json").read_text()), Dataset(str(saved / "dataset"))
    if facts["asked"] != json.loads(json.dumps(_request(arguments))):
        raise DataError(f"{saved} is of other settings: {facts['asked']}")
    if facts["data"] != dataset_checksum(dataset):
        raise DataError(f"{saved / 'dataset'} is not what it was")
    return EventData(dataset, True, facts["data"])


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    if arguments.save:
        save(arguments, folder)
        return {}
    if not torch.accelerator.is_available() and not arguments.here:
        print("skipped: torch finds no accelerator here")
        return {}
    saved, fresh = arguments.against, make_events(arguments, folder)
    sides = benches(arguments, folder, _carried(arguments, saved) if saved else fresh)
    seeds = range(arguments.seeds)
    second = [_shown(SIDES[1], train(sides[SIDES[1]], seed)) for seed in seeds]
    again = _shown(SIDES[2], train(sides[SIDES[2]], 0))
    agreement = element_agreement(Run(sides[SIDES[1]].output / "runs/seed-0"), sides[SIDES[1]].config)
    print(f"# one model on both: {json.dumps(agreement)}", flush=True)
    if saved:
        first = [Trained(**json.loads((saved / f"seed-{seed}.json").read_text())) for seed in seeds]
    else:
        first = [train(sides[SIDES[0]], seed) for seed in seeds]
    for each in first:
        _shown(SIDES[0], each)
    compare(sheet, first, second, again, agreement)
    sheet.state(
        "events made here have the bits of those used", float(fresh.checksum == sides[SIDES[1]].data.checksum), ""
    )
    trainings_by_side = {SIDES[0]: first, SIDES[1]: second, SIDES[2]: [again]}
    return {
        "sides": {side: [each.as_dict() for each in trainings] for side, trainings in trainings_by_side.items()},
        "agreement": agreement,
    } | {
        "asked": _request(arguments),
        "data": sides[SIDES[1]].data.checksum,
        "here": arguments.here,
    }


def element_agreement(run: Run, config: WorkloadConfig) -> dict[str, Any]:
    """Return how far one thread and the device agree on one model, per element."""
    result = inference_speed.agreement(run, config) or {}
    outputs = result["outputs"]
    return {
        "between": result["between"],
        "share_of_elements_that_flip": outputs["bin"]["differ"],
        "by_layer": outputs["bin"]["by_layer"],
        "share_told_another_class": outputs["class"]["differ"],
        "accuracy_gap": outputs["correct"]["mean_difference"],
        "elements": result["items"],
    }


def compare(
    sheet: Sheet, first: Sequence[Trained], second: Sequence[Trained], again: Trained, agreement: Mapping[str, Any]
) -> None:
    pairs = list(zip(first, second, strict=True))
    gaps = [b.accuracy - a.accuracy for a, b in pairs]
    drifts = [np.abs(np.array(b.losses) / np.array(a.losses) - 1) for a, b in pairs]
    class_differences = [np.mean(np.array(a.classes) != np.array(b.classes)) for a, b in pairs]
    sheet.bar(
        "weights to start from, share of seeds with the same",
        float(np.mean([a.start == b.start for a, b in pairs])),
        1.0,
        "",
    )
    sheet.bar(
        "trained on each: gap of masked accuracy, mean of seeds", 100 * abs(float(np.mean(gaps))), BAR, "%", lower=True
    )
    sheet.state("the largest of a seed", 100 * float(np.abs(gaps).max()), "%")
    sheet.state("the loss of the first step, largest gap", 100 * float(max(each[0] for each in drifts)), "%")
    sheet.state("training loss, largest drift of a step", 100 * float(max(each.max() for each in drifts)), "%")
    sheet.state(
        "elements told another class by the two models", 1e6 * float(np.mean(class_differences)), "in a million"
    )
    sheet.bar("one model on both: gap of masked accuracy", 100 * agreement["accuracy_gap"], BAR, "%", lower=True)
    sheet.state("elements in another bin", 1e6 * agreement["share_of_elements_that_flip"], "in a million")
    sheet.state("elements told another class", 1e6 * agreement["share_told_another_class"], "in a million")
    same = float(np.mean(np.array(second[0].losses) == np.array(again.losses)))
    sheet.bar("GPU twice, share of losses with the same bits", same, 1.0, "")


def _shown(side: str, trained: Trained) -> Trained:
    print(f"# {side}: {json.dumps(trained.as_dict())}", flush=True)
    return trained


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--events", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help="one thread against two, without a GPU")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="train on processors alone, and keep it there")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="compare with what was kept there")
    parser.add_argument("--set", action="append", help="a setting more")
    sys.exit(main(measure, parser))
