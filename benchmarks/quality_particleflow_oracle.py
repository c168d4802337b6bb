"""What neighbours can tell about an element of particle flow: boosted trees on a tower alone, and with its neighbours.

A track is its particle, so only towers are classified; accuracies are over all elements. `alone` uses what one element
knows: eta, energy and its two parts. `neighbours` adds what the elements around it know: number and momenta of the
tracks that point at the cell of the tower, what their subtraction leaves, and the energies and momenta in the same cell
and in the eight around it. The rule is that of `clew.recipes.particleflow.reconstruct_by_rule`. Accuracies are of
unseen events, by region: inside and outside the acceptance of the tracker. Energies of neutral hadrons and photons are
learned by trees with the same inputs; their resolution is half the central 68% of predicted over true, over the median.

Events of Pythia and parametric ones, at 0, 40 and 200 pile-up, with separate electromagnetic and hadronic towers, and
with combined ones. Three seeds, each with its own events and trees. The error of a gain is that of its mean over
events.

It works in pieces: it stops after `--seconds`, and continues when called again with the same `--folder`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import lightgbm
import numpy as np
from _contest import Sheet, main, options
from numpy.typing import NDArray

from clew import Ragged, Table, concat
from clew.recipes.particleflow import generator
from clew.recipes.particleflow.calorimeter import COARSE_GRID
from clew.recipes.particleflow.columns import (
    CLASSES,
    ELECTRON,
    ELEMENTS,
    MUON,
    NEUTRAL_HADRON,
    PHOTON,
    TARGETS,
    TOWER,
    TRACK,
)
from clew.recipes.particleflow.detector import ParticleFlowDetectorConfig
from clew.recipes.particleflow.generator import EVENTS_PER_FILE, ParticleFlowGeneratorConfig
from clew.recipes.particleflow.rule_based import link_tracks, reconstruct_by_rule
from clew.recipes.particleflow.targets import TRACKER_ETA

Array = NDArray[Any]
SEEDS = (1, 2, 3)
EVENTS = {0: (800, 400), 40: (200, 100), 200: (80, 50)}
"""Events to train on and to evaluate, by pile-up."""
LAYOUTS = {
    "separate": ParticleFlowDetectorConfig(),
    "combined": ParticleFlowDetectorConfig(calorimeter="combined", min_em_significance=1.0),
}
TREES: dict[str, Any] = {"n_estimators": 80, "learning_rate": 0.1, "num_leaves": 31, "n_jobs": 1, "verbose": -1}
TREES |= {"deterministic": True, "force_col_wise": True, "min_child_samples": 100}
RARE = (ELECTRON, MUON)
"""Classes of a few towers per event, on which the trees are not trained: they make them unstable."""


class Unit(NamedTuple):
    """One study: which events, and the seed of events and trees."""

    kind: str
    layout: str
    pileup: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.layout}-pu{self.pileup}"


class TowerSample(NamedTuple):
    """The towers of events: features without and with neighbours, targets, the result of the rule, and the event."""

    alone: Array
    neighbours: Array
    classes: Array
    energy: Array
    rule: Array
    rule_energy: Array
    event: Array


def make_events(unit: Unit, first: int, count: int) -> Table:
    config = ParticleFlowGeneratorConfig(kind=unit.kind, pileup=unit.pileup, detector=LAYOUTS[unit.layout])
    files = range(first // EVENTS_PER_FILE, -(-(first + count) // EVENTS_PER_FILE))
    return concat([generator.make_events(EVENTS_PER_FILE, unit.seed, file, config) for file in files]).slice(0, count)


def tower_sample(table: Table) -> TowerSample:
    elements, targets = table.ragged(ELEMENTS), table.ragged(TARGETS).values
    x, tower, rule = elements.values, elements.values[:, 0] == TOWER, reconstruct_by_rule(elements)
    own = x[:, [1, 2, 5, 6, 7]].astype(np.float64)
    links = np.stack(link_tracks(elements), axis=1)
    left = np.stack([own[:, 2] - links[:, 1], own[:, 3] - links[:, 2], own[:, 4] - links[:, 1]], axis=1)
    more = np.concatenate([own, links, left, _surroundings(elements)], axis=1)
    rule_class, rule_energy = (rule.ragged(name).values for name in ("pid", "energy"))
    columns = (own, more, targets[:, 0].astype(int), targets[:, 6], rule_class, rule_energy, elements.events)
    return TowerSample(*(each[tower] for each in columns))


def _surroundings(elements: Ragged) -> Array:
    """Energies and track momenta in the coarse cell of each element, and in the eight cells around it."""
    x, grid = elements.values.astype(np.float64), COARSE_GRID
    track = x[:, 0] == TRACK
    eta, phi = (
        np.where(track, x[:, 6], x[:, 2]),
        np.arctan2(np.where(track, x[:, 7], x[:, 3]), np.where(track, x[:, 8], x[:, 4])),
    )
    cell, size = elements.events * grid.towers + grid.index(eta, phi), len(elements) * grid.towers
    values = [np.where(track, 0, x[:, 6]), np.where(track, 0, x[:, 7]), np.where(track, x[:, 5], 0)]
    values += [np.where(track, 1.0, 0), np.where(track, 0, 1.0)]
    sums = [np.bincount(cell, value, minlength=size) for value in values]
    width_eta, width_phi = grid.widths(grid.index(eta, phi))
    around = np.zeros((len(sums), len(x)))
    for up in (-1, 0, 1):
        for along in (-1, 0, 1):
            there = (phi + along * width_phi + np.pi) % (2 * np.pi) - np.pi
            other = elements.events * grid.towers + grid.index(np.clip(eta + up * width_eta, -4.99, 4.99), there)
            around += np.stack([each[other] for each in sums]) * (bool(up) or bool(along))
    hardest = np.zeros(size)
    np.maximum.at(hardest, cell[track], x[track, 5])
    return np.stack([*(each[cell] for each in sums), *around, hardest[cell]], axis=1)


def study(unit: Unit, quick: bool) -> dict[str, Any]:
    """Train and evaluate the trees of one unit."""
    start, (learned, unseen) = time.monotonic(), EVENTS[unit.pileup]
    if quick:
        learned, unseen = learned // 4, unseen // 4
    train = tower_sample(make_events(unit, 0, learned))
    table = make_events(unit, 10_000, unseen)
    test, elements = tower_sample(table), table.ragged(ELEMENTS)
    predicted, usual = {"rule": test.rule}, ~np.isin(train.classes, RARE)
    resolution = {"rule": _resolutions(test, test.rule_energy)}
    for name in ("alone", "neighbours"):
        trees = lightgbm.LGBMClassifier(random_state=unit.seed, **TREES)
        trees.fit(getattr(train, name)[usual], train.classes[usual])
        predicted[name] = np.asarray(trees.predict(getattr(test, name)))
        resolution[name] = _resolutions(test, _energies(unit, train, test, name))
    tracks = elements.values[:, 0] == TRACK
    inside = np.abs(test.alone[:, 1]) < TRACKER_ETA
    result: dict[str, Any] = {"unit": unit._asdict(), "events": [learned, unseen], "resolution": resolution}
    result["elements"] = len(elements.values) / unseen
    for name, classes in predicted.items():
        result[name] = _figures(classes, test.classes, inside, int(tracks.sum()))
    gain = np.bincount(test.event, (predicted["neighbours"] == test.classes) * 1.0, unseen)
    gain = (gain - np.bincount(test.event, predicted["alone"] == test.classes, unseen)) / elements.lengths.mean()
    result["gain"] = [float(gain.mean()), float(gain.std(ddof=1) / np.sqrt(unseen))]
    return {**result, "seconds": round(time.monotonic() - start, 1)}


def _energies(unit: Unit, train: TowerSample, test: TowerSample, name: str) -> Array:
    """Energies of particles, learned from those that are neutral: the ratio to the energy of the tower, as a log."""
    rows = np.isin(train.classes, (NEUTRAL_HADRON, PHOTON))
    trees = lightgbm.LGBMRegressor(random_state=unit.seed, objective="l1", **TREES)
    trees.fit(getattr(train, name)[rows], np.log(train.energy[rows] / train.alone[rows, 2]))
    energies: Array = test.alone[:, 2] * np.exp(trees.predict(getattr(test, name)))
    return energies


def _resolutions(test: TowerSample, energy: Array) -> dict[str, float]:
    """By class and region. Towers for which the rule finds nothing are left out for all."""
    results, inside = {}, np.abs(test.alone[:, 1]) < TRACKER_ETA
    for number in (NEUTRAL_HADRON, PHOTON):
        for region, mask in (("inside", inside), ("outside", ~inside)):
            rows = mask & (test.classes == number) & (test.rule == number)
            if rows.sum() > 10:
                low, middle, high = np.quantile(energy[rows] / test.energy[rows], [0.16, 0.5, 0.84])
                results[f"{CLASSES[number]}, {region}"] = float((high - low) / 2 / middle)
    return results


def _figures(predicted: Array, true: Array, inside: Array, tracks: int) -> dict[str, Any]:
    """Accuracy over elements and of towers by region; efficiency and fake rate of neutral hadrons inside."""
    right = predicted == true
    figures = {"accuracy": (right.sum() + tracks) / (len(true) + tracks)}
    figures |= {"inside": (right[inside].sum() + tracks) / (inside.sum() + tracks), "outside": right[~inside].mean()}
    figures |= {"towers inside": right[inside].mean()}
    hadron, named = inside & (true == NEUTRAL_HADRON), inside & (predicted == NEUTRAL_HADRON)
    figures |= {"efficiency": right[hadron].mean(), "fake": 1 - right[named].mean() if named.any() else float("nan")}
    return {name: float(value) for name, value in figures.items()}


def units(quick: bool) -> Iterator[Unit]:
    for seed in SEEDS:
        for kind in ("pythia", "parametric"):
            for layout in LAYOUTS if kind == "pythia" else ("separate",):
                for pileup in (0, 40) if quick else EVENTS:
                    yield Unit(kind, layout, pileup, seed)


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    place, start, done = arguments.folder or folder, time.monotonic(), dict[str, list[dict[str, Any]]]()
    place.mkdir(parents=True, exist_ok=True)
    missing = 0
    for unit in units(arguments.quick):
        file = place / f"{unit.name}-seed{unit.seed}{'-quick' if arguments.quick else ''}.json"
        if not file.exists() and time.monotonic() - start > arguments.seconds:
            missing += 1
            continue
        if not file.exists():
            file.write_text(json.dumps(study(unit, arguments.quick)))
            print(f"# {file.read_text()}", flush=True)
        done.setdefault(unit.name, []).append(json.loads(file.read_text()))
    for name, results in done.items():
        _report(sheet, name, results)
    if missing:
        print(f"# {missing} studies are missing: call again with the same --folder")
    return {"studies": done, "missing": missing, "trees": TREES}


def _report(sheet: Sheet, name: str, results: list[dict[str, Any]]) -> None:
    def mean(read: Any) -> float:
        return float(statistics.mean(read(each) for each in results))

    events, elements = results[0]["events"][1], results[0]["elements"]
    print(f"{name}: {len(results)} seeds, {events} unseen events of {elements:,.0f} elements each")
    for key in ("accuracy", "inside", "outside", "towers inside", "efficiency", "fake"):
        for who in ("rule", "alone", "neighbours"):
            values = [each[who][key] for each in results]
            sheet.state(f"{name}, {key}, {who}", statistics.mean(values), "")
            sheet.stated[f"{name}, {key}, {who}, spread"] = statistics.stdev(values) if len(values) > 1 else 0.0
    sheet.state(f"{name}, gain by neighbours", mean(lambda each: each["gain"][0]), "")
    error = np.sqrt(sum(each["gain"][1] ** 2 for each in results)) / len(results)
    sheet.state(f"{name}, standard error of the gain", float(error), "")
    for key in results[0]["resolution"]["rule"]:
        for who in ("rule", "alone", "neighbours"):
            sheet.state(
                f"{name}, energy of {key}, {who}", mean(lambda each, k=key, w=who: each["resolution"][w][k]), ""
            )


if __name__ == "__main__":
    parser = options(__doc__, "a quarter of the events, no study at 200 pile-up")
    parser.add_argument("--folder", type=Path, help="results of single studies, to continue with")
    parser.add_argument("--seconds", type=float, default=540, help="start no study after so long")
    sys.exit(main(measure, parser))
