"""How well the network identifies particles in liquid argon. Two plans: by resolution and batch size; as the study did.

Synthetic events of the generator of the recipe, made once by all cores. Prepare, train, evaluate, as users do it.

`--plan resolution` (default): 40,000 events for training, 5,000 for evaluation; the last weights, so that the test
events select nothing. First the confusion table at 3600 x 3600 and at images shrunk by 5 and by 10 (same network, same
epochs; charges, which add up, in units of the shrinking); then, at full resolution, the loss by global batch with the
recipe's rule for the learning rate, and without it. Nothing is tuned.

`--plan study`: the study's size, 30,000 events for training and 5,000 for evaluation at 3600 x 3600, 50 epochs. First
with augmentation, dropout and label smoothing, then without; cosine schedule and averaged weights in both. 1,000 other
events choose the best weights by accuracy. The same weights are also evaluated on a part of the training events, as
they are: the difference shows how much the network has memorised. No bar is set in either plan.

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
from clew.recipes.lartpc import LArTPC
from clew.recipes.lartpc.columns import CLASSES
from clew.recipes.lartpc.generate.events import VERSION
from clew.runs.environment import capture
from clew.runs.html_page import HtmlPage, table
from clew.runs.summary import summarize
from clew.settings import load_settings
from clew.training.api import resume
from clew.training.device import find_device

SEED, PART, SEEN = 14, 64, 1024
"""Seed of the generator; images per training or evaluation batch; training events that are evaluated too."""
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
    settings: tuple[str, ...] = ()
    weights: tuple[str, ...] = ("last",)
    split: str = "val"
    """The split on which it is evaluated."""


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
    choose: int = 0
    """Events that choose the best weights. 0: no weights are chosen, and a run is validated on the test events."""


SIZES = {
    "resolution": Sizes(40_000, 5_000, 3600, (1, 5, 10), (16, 64, 256, 1024), 20, 6),
    "study": Sizes(30_000, 5_000, 3600, (1,), (), 50, 0, choose=1_000),
}
QUICK = {
    "resolution": Sizes(60, 30, 1300, (1, 2, 4), (8, 16), 2, 1),
    "study": Sizes(128, 64, 1300, (1,), (), 2, 0, choose=32),
}
COMMON = ("train.schedule.name=cosine", "train.schedule.warmup=0.02", "train.ema=0.999")
REGULARISED = ("augment.enabled=true", "model.dropout=0.2", "loss.label_smoothing=0.05")


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


def trials(plan: str, sizes: Sizes) -> Iterator[Trial]:
    """In the order in which they matter."""
    if plan == "study":
        for name, more in (("augmented", REGULARISED), ("plain", ())):
            yield Trial(name, 1, PART, "auto", sizes.epochs, (*COMMON, *more), ("best", "last"), "test")
        return
    for shrink in sizes.shrinks:
        yield Trial(f"shrunk-{shrink}" if shrink > 1 else "full", shrink, PART, "auto", sizes.epochs)
    for rule in RULES:
        for batch in sizes.batches:
            yield Trial(f"batch-{batch}-{rule}", 1, batch, rule, sizes.scan_epochs)


def shape(sizes: Sizes, shrink: int) -> list[str]:
    return [f"image.rows={sizes.side}", f"image.columns={sizes.side}", f"image.shrink={shrink}"]


def settings(trial: Trial, sizes: Sizes, device: str) -> list[str]:
    more = [*shape(sizes, trial.shrink), f"model.unit={trial.shrink}", *trial.settings]
    more += [f"train.batch_size={trial.batch}", f"train.accumulate={max(1, trial.batch // PART)}"]
    more += [f"train.epochs={trial.epochs}", f"train.optimizer.lr_rule={trial.rule}", "train.seed=1", "train.workers=1"]
    return [*more, "train.precision=bf16"] if device == "cuda" else more


def make_events(folder: Path, sizes: Sizes, clock: Clock) -> dict[str, Any]:
    """Return the files of each split; those of the training are of another seed than those of the others."""
    counts = {"train": sizes.train, "test": sizes.test, "choose": sizes.choose}
    for shift, (name, count) in enumerate(counts.items()):
        place, done = folder / f"events-{name}", folder / f"events-{name}.done"
        if count and not done.exists():
            clock.ask(60 if count > 1000 else 0)
            start = time.monotonic()
            generate(load_settings("lartpc", shape(sizes, 1)).recipe, count, SEED + shift, place)
            done.touch()
            print(f"{count:,} synthetic events, {name}: {time.monotonic() - start:.0f} s", flush=True)
    train, test, choose = ([str(folder / f"events-{name}")] for name in counts)
    return {"train": train, "val": choose, "test": test} if sizes.choose else {"train": train, "val": test}


def prepared(folder: Path, sizes: Sizes, shrink: int, clock: Clock) -> Dataset:
    """Return the dataset at a resolution."""
    place = folder / f"data-{shrink}{'-study' if sizes.choose else ''}"
    if not (place / "manifest.json").exists():
        inputs = make_events(folder, sizes, clock)
        start = time.monotonic()
        loaded = load_settings("lartpc", shape(sizes, shrink))
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


def figures_of(run: Run, trial: Trial, folder: Path) -> list[dict[str, Any]]:
    """Return the figures of a finished run, for each of its weights."""
    files = sorted(str(each) for each in (folder / "events-train").iterdir())
    seen = files[: max(1, SEEN // LArTPC.events_per_file)] if trial.split == "test" else []
    summary, steps, validations = summarize(run), list(run.records(kind="step")), list(run.records(kind="validation"))
    training = {
        **asdict(trial),
        "trial": trial.name,
        "losses": [record["metrics"]["loss"] for record in validations],
        "accuracies": [record["metrics"]["accuracy"] for record in validations],
        "training losses": epoch_losses(steps),
        "learning rate": max(record["lr"] for record in steps),
        "images/s": summary.times.samples_per_second,
        "seconds of learning": sum(record["seconds"] for record in steps),
        "seconds of validation": sum(record["seconds"] for record in validations),
        "loading": summary.loading,
        "parameters": summary.parameters,
    }
    return [training | evaluated(run, trial, weights, seen) for weights in trial.weights]


def epoch_losses(steps: Sequence[dict[str, Any]]) -> list[float]:
    """Return the mean of the recorded losses of each epoch."""
    by_epoch: dict[int, list[float]] = {}
    for record in steps:
        by_epoch.setdefault(record["epoch"], []).append(record["loss"]["loss"])
    return [float(np.mean(each)) for each in by_epoch.values()]


def evaluated(run: Run, trial: Trial, weights: str, seen: Sequence[str]) -> dict[str, Any]:
    """Return the figures of some weights of a run on the split of the trial, and on files of training events."""
    start, name = time.monotonic(), trial.name if len(trial.weights) == 1 else f"{trial.name}, {weights}"
    first = clew.evaluate(run, split=trial.split, name=f"test-{weights}", weights=weights, batch_size=PART)
    others = [clew.evaluate(run, input=seen, name=f"seen-{weights}", weights=weights, batch_size=PART)] if seen else []
    confusion, energy, scores = (first.metrics[each] for each in ("confusion", "accuracy_energy", "summed_scores"))
    assert isinstance(confusion, metrics.Confusion) and isinstance(scores, metrics.Confusion)
    counts = confusion.counts
    return {
        "name": name,
        "accuracy": first.metrics["accuracy"].value,
        "error": first.metrics["accuracy"].error,
        "loss": first.metrics["loss"].value,
        "seen": {each: result.metrics[each].value for result in others for each in ("accuracy", "loss")},
        "efficiency": dict(zip(CLASSES, (np.diag(counts) / counts.sum(axis=1)).tolist(), strict=True)),
        "confusion": counts.tolist(),
        "summed scores": scores.counts.tolist(),
        "seconds of evaluation": time.monotonic() - start,
        "figures": [
            confusion.figure(f"{name}: confusion"),
            scores.figure(f"{name}: summed scores"),
            energy.figure(f"{name}: accuracy"),
        ],
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


def curves(results: Sequence[dict[str, Any]]) -> list[figure.Figure]:
    """Losses and accuracy of validation against epochs, of the trials of the plan `study`."""
    trials = {each["trial"]: each for each in results if "best" in each["weights"]}
    drawn = []
    for title, axis, values in (
        ("Loss", "loss", {"validation": "losses", "training": "training losses"}),
        ("Accuracy of the events that choose the weights", "accuracy", {"validation": "accuracies"}),
    ):
        lines = [
            figure.line(range(1, len(each[key]) + 1), each[key], f"{name}, {label}", colour=2 * place + shift)
            for place, (name, each) in enumerate(trials.items())
            for shift, (label, key) in enumerate(values.items())
        ]
        if lines:
            drawn.append(figure.figure(lines, title=title, x="epoch", y=axis))
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
        + [f"{each['seen'][name]:.3f}" if each["seen"] else "" for name in ("accuracy", "loss")]
        + [f"{each['images/s']:,.0f}", f"{each['seconds of learning']:.0f}"]
        for each in results
    ]
    study = [f"{STUDY['all']:.3f}", "", "", *(f"{STUDY[name]:.3f}" for name in CLASSES)]
    rows.append(["the study (other events)", *study, "", "", "", ""])
    head = [
        "",
        "accuracy",
        "±",
        "loss",
        *CLASSES,
        "accuracy, training events",
        "loss, training events",
        "images/s",
        "s",
    ]
    page.section("Trials", table(head, rows))
    page.section("Against epochs", figures=curves(results))
    page.section("Loss against global batch", figures=scan(results))
    for each in results:
        if not each["name"].startswith("batch-"):
            page.section(each["name"], figures=each["figures"])
    page.write(out / "quality_lartpc.html")
    bare = [{name: value for name, value in each.items() if name != "figures"} for each in results]
    document = {"bars": [], "conditions": {**conditions, "trials": bare, "study": STUDY}}
    (out / "quality_lartpc.json").write_text(json.dumps(document, indent=1) + "\n")


def show(each: dict[str, Any]) -> None:
    """Print the results of some weights."""
    shares = ", ".join(f"{name} {value:.3f}" for name, value in each["efficiency"].items())
    print(f"{each['name']}: {each['accuracy']:.4f} ± {each['error']:.4f} right ({shares}), loss {each['loss']:.4f}")
    if each["seen"]:
        print(f"  on training events: {each['seen']['accuracy']:.4f} right, loss {each['seen']['loss']:.4f}")
        for name, row in zip(CLASSES, each["summed scores"], strict=True):
            print(f"  summed scores of {name}: " + " ".join(f"{value:.0f}" for value in row))
    seconds = ", ".join(
        f"{each[f'seconds of {name}']:.0f} s {name}" for name in ("learning", "validation", "evaluation")
    )
    print(f"  {each['images/s']:,.0f} images/s; {seconds}", flush=True)


def measure(arguments: argparse.Namespace, sizes: Sizes, chosen: Sequence[Trial], device: str) -> None:
    """Run the chosen trials, one after the other.

    Raises:
        StoppedError: the time is over.
    """
    folder, clock = arguments.folder, Clock(arguments.seconds)
    conditions = {"sizes": asdict(sizes), "generator": VERSION, "seed": SEED, "environment": capture()}
    conditions["settings"] = {trial.name: list(trial.settings) for trial in chosen}
    results: list[dict[str, Any]] = []
    for trial in chosen:
        result_file = folder / f"{trial.name}.json"
        if not result_file.exists():
            run = trained(folder, trial, sizes, device, clock)
            clock.ask(10 * len(trial.weights) if sizes.choose else 5)
            result_file.write_text(json.dumps(figures_of(run, trial, folder)))
            for each in json.loads(result_file.read_text()):
                show(each)
        results += json.loads(result_file.read_text())
        written(arguments.out, results, conditions)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", choices=tuple(SIZES), default="resolution", help="what is trained")
    parser.add_argument("--trials", help="some trials of the plan, separated by commas (default: all)")
    parser.add_argument("--quick", action="store_true", help="a few small images: whether it works")
    parser.add_argument("--folder", type=Path, required=True, help="working folder; interrupted runs continue from it")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument("--seconds", type=float, default=570.0, help="stop by itself after so long (default: 570)")
    for name in ("train", "test", "epochs", "scan_epochs"):
        sizes_by_plan = ", ".join(f"{getattr(each, name):,}" for each in SIZES.values())
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"default, by plan: {sizes_by_plan}")
    arguments = parser.parse_args()
    overrides = {name: getattr(arguments, name) for name in ("train", "test", "epochs", "scan_epochs")}
    sizes = replace((QUICK if arguments.quick else SIZES)[arguments.plan], **{n: v for n, v in overrides.items() if v})
    chosen = list(trials(arguments.plan, sizes))
    if arguments.trials:
        names = arguments.trials.split(",")
        unknown = set(names) - {trial.name for trial in chosen}
        if unknown:
            parser.error(f"--trials: no '{min(unknown)}'; there are {', '.join(trial.name for trial in chosen)}")
        chosen = [trial for trial in chosen if trial.name in names]
    device = find_device().type
    print(f"on {device}, {len(chosen)} trials, at most {arguments.seconds:.0f} s now", flush=True)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    try:
        measure(arguments, sizes, chosen, device)
    except StoppedError as error:
        print(f"not all is done yet ({error}): call again with the same --folder", flush=True)
        return 3
    print("all is done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
