"""How well the network identifies particles in liquid argon: at full and at reduced resolution, by batch size.

Synthetic events of the generator of the recipe, made once by all cores: 40,000 for training, 5,000 for evaluation.
Prepare, train, evaluate, as users do it; the last weights, so that the test events select nothing. First the confusion
table at 3600 x 3600 and at images shrunk by 5 and by 10 (same network, same epochs; charges, which add up, in units of
the shrinking); then, at full resolution, the loss by global batch with the recipe's rule for the learning rate, and
without it. Nothing is tuned, and no bar is set.

It works in pieces: it stops after `--seconds`, and continues when called again with the same `--folder`.
What is done is in `--out` at any time: quality_lartpc.json, and pages with plots.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import clew
from clew import Dataset, Run, figure, metrics
from clew.data.prepare.generate import generate
from clew.errors import StoppedError
from clew.recipes.lartpc.columns import CLASSES
from clew.recipes.lartpc.generate.events import VERSION
from clew.runs.environment import capture
from clew.runs.html_page import HtmlPage, table
from clew.runs.summary import summarize
from clew.settings import load_settings
from clew.training.api import resume
from clew.training.device import find_device

SEED, PART = 14, 64
"""Seed of the generator; images per training or evaluation batch."""
SPARE = 12.0
"""Seconds that are reserved for stopping."""
RULES = {"auto": "rate by the root of the batch", "none": "the same rate"}
STUDY = {"all": 0.862, "gamma": 0.98, "e": 0.99, "mu": 0.998, "pi": 0.58, "K": 0.62}
"""The accuracies of the study, on other events."""


@dataclass(frozen=True)
class Trial:
    """One training."""

    name: str
    shrink: int
    batch: int
    rule: str
    epochs: int


@dataclass(frozen=True)
class Sizes:
    """The numbers of events and epochs."""

    train: int
    test: int
    side: int
    shrinks: tuple[int, ...]
    batches: tuple[int, ...]
    epochs: int
    scan_epochs: int


FULL = Sizes(40_000, 5_000, 3600, (1, 5, 10), (16, 64, 256, 1024), 20, 6)
QUICK = Sizes(60, 30, 1300, (1, 2, 4), (8, 16), 2, 1)


class Clock:
    """The time limit."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds left, without those reserved for stopping."""
        return self._end - time.monotonic() - SPARE

    def ask(self, needed: float) -> None:
        """Continue only if this number of seconds is left.

        Raises:
            StoppedError: there are fewer.
        """
        if self.left < needed:
            raise StoppedError(f"{self.left:.0f} s are left, {needed:.0f} are needed")


def trials(sizes: Sizes) -> Iterator[Trial]:
    """In the order in which they matter."""
    for shrink in sizes.shrinks:
        yield Trial(f"shrunk-{shrink}" if shrink > 1 else "full", shrink, PART, "auto", sizes.epochs)
    for rule in RULES:
        for batch in sizes.batches:
            yield Trial(f"batch-{batch}-{rule}", 1, batch, rule, sizes.scan_epochs)


def shape(sizes: Sizes, shrink: int) -> list[str]:
    return [f"image.rows={sizes.side}", f"image.columns={sizes.side}", f"image.shrink={shrink}"]


def settings(trial: Trial, sizes: Sizes, device: str) -> list[str]:
    more = [*shape(sizes, trial.shrink), f"model.unit={trial.shrink}"]
    more += [f"train.batch_size={trial.batch}", f"train.accumulate={max(1, trial.batch // PART)}"]
    more += [f"train.epochs={trial.epochs}", f"train.optimizer.lr_rule={trial.rule}", "train.seed=1", "train.workers=1"]
    return [*more, "train.precision=bf16"] if device == "cuda" else more


def make_events(folder: Path, sizes: Sizes, clock: Clock) -> list[str]:
    """Files of events; those of the test split have another seed."""
    for name, count, seed in (("train", sizes.train, SEED), ("test", sizes.test, SEED + 1)):
        place, done = folder / f"events-{name}", folder / f"events-{name}.done"
        if not done.exists():
            clock.ask(60 if count > 1000 else 0)
            start = time.monotonic()
            generate(load_settings("lartpc", shape(sizes, 1)).recipe, count, seed, place)
            done.touch()
            print(f"{count:,} synthetic events, {name}: {time.monotonic() - start:.0f} s", flush=True)
    return [str(folder / "events-train"), str(folder / "events-test")]


def prepared(folder: Path, sizes: Sizes, shrink: int, clock: Clock) -> Dataset:
    """The dataset at a resolution. A run is validated on the test events; nothing depends on it."""
    place = folder / f"data-{shrink}"
    if not (place / "manifest.json").exists():
        train, test = make_events(folder, sizes, clock)
        start = time.monotonic()
        loaded = load_settings("lartpc", shape(sizes, shrink))
        inputs: Any = {"train": [train], "val": [test]}
        clew.prepare(
            loaded.recipe, loaded.prepare, input=inputs, output=str(place), cache=str(folder / "cache"), keep=()
        )
        print(f"dataset shrunk by {shrink}: {time.monotonic() - start:.0f} s", flush=True)
    return Dataset(place)


def trained(folder: Path, trial: Trial, sizes: Sizes, device: str, clock: Clock) -> Run:
    """Return a finished run: a new one, a resumed one, or an existing one.

    Raises:
        StoppedError: The time is over. The run can be resumed.
    """
    data, place = prepared(folder, sizes, trial.shrink, clock), folder / "runs" / trial.name
    clock.ask(10)
    minutes = clock.left / 60
    if not place.exists():
        loaded = load_settings("lartpc", settings(trial, sizes, device))
        clew.train(loaded.recipe, data, config=loaded.train, output=place, time_limit_minutes=minutes)
    elif Run.open(place).state != "finished":
        resume(place, time_limit_minutes=minutes)
    return Run.open(place)


def figures_of(run: Run, trial: Trial) -> dict[str, Any]:
    """The figures of a finished run."""
    evaluation = clew.evaluate(run, split="val", name="judged", weights="last", batch_size=PART)
    confusion, energy = evaluation.metrics["confusion"], evaluation.metrics["accuracy_energy"]
    assert isinstance(confusion, metrics.Confusion)
    counts, summary, steps = confusion.counts, summarize(run), list(run.records(kind="step"))
    return {
        **asdict(trial),
        "accuracy": evaluation.metrics["accuracy"].value,
        "error": evaluation.metrics["accuracy"].error,
        "loss": evaluation.metrics["loss"].value,
        "losses": [record["metrics"]["loss"] for record in run.records(kind="validation")],
        "efficiency": dict(zip(CLASSES, (np.diag(counts) / counts.sum(axis=1)).tolist(), strict=True)),
        "confusion": counts.tolist(),
        "learning rate": max(record["lr"] for record in steps),
        "images/s": summary.times.samples_per_second,
        "seconds of learning": sum(record["seconds"] for record in steps),
        "loading": summary.loading,
        "parameters": summary.parameters,
        "figures": [confusion.figure(f"{trial.name}: confusion"), energy.figure(f"{trial.name}: accuracy")],
    }


def scan(results: Sequence[dict[str, Any]]) -> list[figure.Figure]:
    """Loss by epoch at each global batch, with the rule and without."""
    drawn = []
    for rule, label in RULES.items():
        trials = [each for each in results if each["name"].startswith("batch-") and each["rule"] == rule]
        lines = [
            figure.line(
                range(1, len(each["losses"]) + 1),
                each["losses"],
                f"batch {each['batch']}",
                colour=place,
                mode="lines+markers",
            )
            for place, each in enumerate(trials)
        ]
        if lines:
            drawn.append(figure.figure(lines, title=f"Loss of test events, {label}", x="epoch", y="loss"))
    return drawn


def written(out: Path, results: list[dict[str, Any]], conditions: dict[str, Any]) -> None:
    """All results so far."""
    out.mkdir(parents=True, exist_ok=True)
    page = HtmlPage("Particles in liquid argon, synthetic")
    sizes = conditions["sizes"]
    page.header(facts=[f"{sizes['train']:,} training events, {sizes['test']:,} test events", f"generator {VERSION}"])
    rows = [
        [each["name"], *(f"{value:.4f}" for value in (each["accuracy"], each["error"], each["loss"]))]
        + [f"{each['efficiency'][name]:.3f}" for name in CLASSES]
        + [f"{each['images/s']:,.0f}", f"{each['seconds of learning']:.0f}"]
        for each in results
    ]
    rows.append(["the study", f"{STUDY['all']:.3f}", "", "", *(f"{STUDY[name]:.3f}" for name in CLASSES), "", ""])
    page.section("Trials", table(["", "accuracy", "±", "loss", *CLASSES, "images/s", "s"], rows))
    page.section("Loss against global batch", figures=scan(results))
    for each in results:
        if not each["name"].startswith("batch-"):
            page.section(each["name"], figures=each["figures"])
    page.write(out / "quality_lartpc.html")
    bare = [{name: value for name, value in each.items() if name != "figures"} for each in results]
    document = {"bars": [], "conditions": {**conditions, "trials": bare, "study": STUDY}}
    (out / "quality_lartpc.json").write_text(json.dumps(document, indent=1) + "\n")


def show(each: dict[str, Any]) -> None:
    shares = ", ".join(f"{name} {value:.3f}" for name, value in each["efficiency"].items())
    print(
        f"{each['name']}: {each['accuracy']:.4f} ± {each['error']:.4f} right ({shares}), loss {each['loss']:.4f}",
        end="",
    )
    print(f", {each['images/s']:,.0f} images/s, {each['seconds of learning']:.0f} s", flush=True)


def measure(arguments: argparse.Namespace, sizes: Sizes, device: str) -> None:
    """All trials, one after the other.

    Raises:
        StoppedError: the time is over.
    """
    folder, clock = arguments.folder, Clock(arguments.seconds)
    conditions = {"sizes": asdict(sizes), "generator": VERSION, "seed": SEED, "environment": capture()}
    results: list[dict[str, Any]] = []
    for trial in trials(sizes):
        result_file = folder / f"{trial.name}.json"
        if not result_file.exists():
            run = trained(folder, trial, sizes, device, clock)
            clock.ask(5)
            result_file.write_text(json.dumps(figures_of(run, trial)))
            show(json.loads(result_file.read_text()))
        results.append(json.loads(result_file.read_text()))
        written(arguments.out, results, conditions)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few small images: whether it works")
    parser.add_argument("--folder", type=Path, required=True, help="working folder; interrupted runs continue from it")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument("--seconds", type=float, default=570.0, help="stop by itself after so long (default: 570)")
    for name in ("train", "test", "epochs", "scan_epochs"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"default: {getattr(FULL, name):,}")
    arguments = parser.parse_args()
    overrides = {name: getattr(arguments, name) for name in ("train", "test", "epochs", "scan_epochs")}
    sizes = replace(QUICK if arguments.quick else FULL, **{name: value for name, value in overrides.items() if value})
    device = find_device().type
    print(f"on {device}, {len(list(trials(sizes)))} trials, at most {arguments.seconds:.0f} s now", flush=True)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    try:
        measure(arguments, sizes, device)
    except StoppedError as error:
        print(f"not all is done yet ({error}): call again with the same --folder", flush=True)
        return 3
    print("all is done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
