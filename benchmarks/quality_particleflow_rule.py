"""Small networks of particle flow against rule-based particle flow and against a network of single elements.

Pairs of tops of Pythia without pile-up (or with `--pileup`), made once; three seeds, each with its own split and first
weights; prepare, train, evaluate, as users do it. Contestants are the graph network and the perceptron on single
elements, both without and with the features of linked elements (`data.links`); the attention network with `--kinds`.
The rule is evaluated on the same test events, with its usual significance and with the one that gives the best jets on
validation events. Its thresholds (significance and energy) are scanned: the efficiency of
neutral hadrons inside the tracker is compared at a fake rate that is not larger than that of the network.

It works in pieces: it starts no training after `--seconds`, and continues when called again with the same `--folder`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _contest import Sheet, main, options

import clew
from clew import Dataset
from clew.recipes.particleflow.columns import ELEMENTS, NEUTRAL_HADRON, TARGETS
from clew.recipes.particleflow.metrics import ParticleFlowMetricsConfig, make_metrics
from clew.recipes.particleflow.rule_based import RuleBasedConfig, reconstruct_by_rule
from clew.recipes.particleflow.targets import TRACKER_ETA
from clew.settings import load_settings

SEEDS = (1, 2, 3)
SMALL = ["model.width=64", "model.distance=32", "model.bin_size=160", "model.identity_width=64"]
SMALL += [
    "model.momentum_width=64",
    "model.heads=4",
    "model.correct_pt=true",
    "reconstruction.track_momentum=measured",
    "train.threads=1",
    "train.batch_size=32",
]
SMALL += [
    "train.optimizer.lr=2e-3",
    "train.optimizer.lr_rule=none",
    "train.trace=false",
    "train.keep_checkpoints=1",
]
SCANNED = np.arange(0, 6.1, 0.5), np.arange(9, 31, 1.5)
"""Thresholds of the rule that are tried: significance, and energy of neutral hadrons in GeV."""
SIGNIFICANCES = (1.0, 2.0, 3.0, 4.0)
TUNED = ("accuracy", "jet_resolution", "inside/jet_resolution", "met_resolution")
"""Figures of the rule with the best significance for jets."""
FIGURES: tuple[str, ...] = ("accuracy", "inside/accuracy", "outside/accuracy")
FIGURES += tuple(
    f"{region}{what}/neutral_hadron" for region in ("inside/", "outside/") for what in ("efficiency", "fake")
)
FIGURES += tuple(
    f"{region}energy_resolution/{name}" for region in ("inside/", "outside/") for name in ("neutral_hadron", "photon")
)
FIGURES += ("jet_response", "jet_resolution", "inside/jet_resolution", "jet_efficiency", "met_resolution")


class Contestant(NamedTuple):
    """One training."""

    kind: str
    links: bool
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}{', linked' if self.links else ''}"

    @property
    def label(self) -> str:
        return f"{self.kind}{'-links' if self.links else ''}-seed{self.seed}"


def study(contestant: Contestant, place: Path, files: list[str], epochs: int, more: list[str]) -> dict[str, Any]:
    """Train and evaluate one network, and the rule on its test events."""
    start, links = time.monotonic(), f"data.links={str(contestant.links).lower()}"
    values = {"model.kind": contestant.kind, "train.seed": contestant.seed, "prepare.seed": contestant.seed}
    chosen = [*SMALL, links, f"train.epochs={epochs}", *(f"{key}={value}" for key, value in values.items())]
    loaded = load_settings("particleflow", [*chosen, *more])
    folder = place / f"data-{'links-' if contestant.links else ''}{contestant.seed}"
    data = clew.prepare(loaded.recipe, loaded.prepare, input=files, output=str(folder), workers=1)
    run = clew.train(loaded.recipe, data, config=loaded.train, output=place / f"run-{contestant.label}")
    metrics = clew.evaluate(run, batch_size=32).metrics
    result: dict[str, Any] = {"name": contestant.name, "seed": contestant.seed, "epochs": epochs}
    for prefix, key in (("", "network"), ("rule/", "rule")):
        result[key] = {name: metrics[prefix + name].value for name in FIGURES}
        result[f"{key}_errors"] = {name: metrics[prefix + name].error for name in FIGURES}
    result["parameters"] = next(run.records(kind="plan"))["parameters"]
    result["events"] = {split: len(data.read(split)) for split in data.splits}
    return {**result, "seconds": round(time.monotonic() - start)}


def rule_efficiency(data: Dataset, fake: float) -> float:
    """The best efficiency of the rule for neutral hadrons inside the tracker, at this fake rate or a lower one."""
    test = data.read("test")
    elements, true = test.ragged(ELEMENTS), test.ragged(TARGETS).values[:, 0] == NEUTRAL_HADRON
    inside, best = np.abs(elements.values[:, 2]) < TRACKER_ETA, math.nan
    for significance in SCANNED[0]:
        for energy in SCANNED[1]:
            settings = RuleBasedConfig(significance=significance, min_neutral_energy=energy)
            named = inside & (reconstruct_by_rule(elements, settings).ragged("pid").values == NEUTRAL_HADRON)
            if named.any() and 1 - true[named].mean() <= fake:
                best = float(np.nanmax([best, named[inside & true].mean()]))
    return best


def tuned_rule(data: Dataset) -> dict[str, float]:
    """Figures of the rule on test events, with the significance that gives the best jets on validation events."""
    resolutions = {each: _rule_figures(data, "val", each)["jet_resolution"] for each in SIGNIFICANCES}
    best = min(resolutions, key=resolutions.__getitem__)
    return {"significance": best, **_rule_figures(data, "test", best)}


def _rule_figures(data: Dataset, split: str, significance: float) -> dict[str, float]:
    events = data.read(split)
    elements = events.ragged(ELEMENTS)
    particles = reconstruct_by_rule(elements, RuleBasedConfig(significance=significance))
    metrics = make_metrics(events, particles, ParticleFlowMetricsConfig(rule=False))
    return {name: metrics[name].value for name in TUNED}


def contestants(kinds: list[str], quick: bool, linked: bool) -> Iterator[Contestant]:
    for seed in SEEDS[:1] if quick else SEEDS:
        for links in (True,) if linked else (True, False):
            for kind in kinds:
                yield Contestant(kind, links, seed)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    place, start, missing = arguments.folder or folder, time.monotonic(), 0
    events, epochs = (300, 1) if arguments.quick else (arguments.events, arguments.epochs)
    chosen = [f"generator.kind={arguments.generator}", f"generator.pileup={arguments.pileup}"]
    made = place / f"events-{arguments.generator}-{arguments.pileup:g}-{events}"
    if not (made / "done").exists():
        list(load_settings("particleflow", chosen).recipe.generate(events, 7, made))
        (made / "done").touch()
    files, done = sorted(str(path) for path in made.glob("*.h5")), dict[str, list[dict[str, Any]]]()
    for contestant in contestants(arguments.kinds, arguments.quick, arguments.linked):
        file = place / f"{contestant.label}-{made.name}-{epochs}.json"
        if not file.exists() and time.monotonic() - start > arguments.seconds:
            missing += 1
            continue
        if not file.exists():
            file.write_text(json.dumps(study(contestant, place, files, epochs, arguments.set)))
            print(f"# {file.read_text()}", flush=True)
        result = json.loads(file.read_text())
        data = Dataset(place / f"data-{'links-' if contestant.links else ''}{contestant.seed}")
        result["rule_at_fake"] = rule_efficiency(data, result["network"]["inside/fake/neutral_hadron"])
        result["tuned_rule"] = tuned_rule(data)
        done.setdefault(contestant.name, []).append(result)
    _report(sheet, done)
    if missing:
        print(f"# {missing} trainings are missing: call again with the same --folder")
    return {
        "results": done,
        "missing": missing,
        "pileup": arguments.pileup,
        "epochs": epochs,
        "generator": chosen,
        "set": arguments.set,
    }


def _report(sheet: Sheet, done: dict[str, list[dict[str, Any]]]) -> None:
    for name in FIGURES:
        for who, results in done.items():
            _state(sheet, f"{name}, {who}", [each["network"][name] for each in results])
        rule = next(iter(done.values()), [])
        _state(sheet, f"{name}, rule", [each["rule"][name] for each in rule])
    for name in ("significance", *TUNED):
        _state(sheet, f"{name}, tuned rule", [each["tuned_rule"][name] for each in next(iter(done.values()), [])])
    for who, results in done.items():
        _state(sheet, f"rule's efficiency at the fake rate of {who}", [each["rule_at_fake"] for each in results])
    alone = {each["seed"]: each for each in done.get("element", [])}
    for who, results in done.items():
        pairs = [
            (each["network"], alone[each["seed"]]) for each in results if each["seed"] in alone and who != "element"
        ]
        gains = [one["accuracy"] - other["network"]["accuracy"] for one, other in pairs]
        errors = [one["network_errors"]["accuracy"] for one in results]
        errors += [other["network_errors"]["accuracy"] for _, other in pairs]
        if gains:
            error = math.hypot(*errors) / len(pairs)
            sheet.state(f"gain of {who} over single elements", 100 * statistics.mean(gains), "%")
            sheet.state("the same in standard errors of an accuracy", statistics.mean(gains) / error, "")


def _state(sheet: Sheet, name: str, values: list[float]) -> None:
    if values:
        sheet.state(name, statistics.mean(values), "")
        sheet.stated[f"{name}, spread"] = statistics.stdev(values) if len(values) > 1 else 0.0


if __name__ == "__main__":
    parser = options(__doc__, "300 events, one epoch, one seed")
    parser.add_argument("--folder", type=Path, help="events, runs and results, to continue with")
    parser.add_argument("--seconds", type=float, default=540, help="start no training after so long")
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pileup", type=float, default=0.0)
    parser.add_argument("--generator", default="pythia", help="pythia or parametric")
    parser.add_argument("--set", action="append", default=[], help="a setting more; use another --folder for it")
    parser.add_argument("--linked", action="store_true", help="only networks with linked elements")
    parser.add_argument("--kinds", nargs="+", default=["element", "graph"], help="networks by model.kind")
    sys.exit(main(measure, parser))
