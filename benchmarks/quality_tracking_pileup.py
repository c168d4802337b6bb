"""Tracks in the whole detector at pile-up: the recipe `triplets` and ACTS' Kalman filter on the same unseen events.

    python benchmarks/quality_tracking_pileup.py --folder work --seconds 570

Every seed generates its own events (GenericDetector, ttbar-like with `--pileup` other vertices), trains on sectors of
them, and is evaluated on whole events of another sample with as many, with fewer, and with more vertices. One process
with one thread. Tables by pT and eta, CPU seconds per event of every step, peak memory.

Compared are the network, a rule instead of it (`chains.pull_logits`), perfect scores of triplets (what the graph and
the building of tracks allow), and the filter with the settings of `acts_filter.py` and with more seeds. What counts is
defined in `_track_figures.py`. Needs pyacts (the extra `hep`).

It works in pieces: with `--seconds` it stops after that time, and continues when called again with the same `--folder`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet, main, options
from _pileup_memory import RECIPE, peak
from _track_figures import ETA_BINS, PT_BINS, RATES, Counts, add, count, rates, table

import clew
from clew import Recipe, Run, Table
from clew.data.dataset.batch import to_batch
from clew.errors import StoppedError
from clew.recipes.tracking import acts_baseline, chains, whole_event
from clew.recipes.tracking.acts import simulate_acts
from clew.recipes.tracking.particle_gun import ParticleGun
from clew.recipes.tracking.recipe_triplets import Triplets, whole_detector_hits
from clew.recipes.tracking.whole_event import Score
from clew.settings import Settings, load_settings
from clew.training import checkpoint
from clew.training.api import resume
from clew.training.device import find_device

FILTERS = {"filter, 1 seed": 1, "filter, 10 seeds": 10}
"""Kalman filters by name: largest number of seeds per middle space point."""
FINDERS = ("network", "rule", "perfect scores", *FILTERS)
OTHER, VALIDATION = 1000, 2000
"""Added to a seed: the unseen events are a separate sample, those of the validation another."""
SPARE = 15.0
"""Seconds that are reserved for stopping."""
EVENT_SECONDS = 60.0
"""Seconds that must be left to start an event."""
EFFICIENCY_GOAL, SECONDS_GOAL = 0.01, 10.0
"""The aims: efficiency below that of the filter, CPU seconds per event."""


class Clock:
    """The time limit."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds - SPARE

    @property
    def minutes(self) -> float | None:
        """Minutes left for a training."""
        return None if self._end is None else max(self._end - time.monotonic(), 1.0) / 60

    def ask(self, needed: float) -> None:
        """Continue only if this number of seconds is left.

        Raises:
            StoppedError: There are fewer.
        """
        if self._end is not None and self._end - time.monotonic() < needed:
            raise StoppedError("the time is over")


def gun(arguments: argparse.Namespace, pileup: float) -> ParticleGun:
    return ParticleGun(particles="ttbar-like", pileup=pileup, lost_hits=arguments.lost)


def load(seed: int, arguments: argparse.Namespace, sectors: int) -> Settings:
    settings = [
        f"gun.pileup={arguments.pileup}",
        f"gun.lost_hits={arguments.lost}",
        "gun.particles=ttbar-like",
        f"sectors.number={sectors}",
        f"train.epochs={arguments.epochs}",
        "prepare.split_by=null",
        "train.workers=1",
        "train.threads=1",
        f"train.seed={seed}",
        *arguments.set,
    ]
    return load_settings(RECIPE, settings)


def generated(seed: int, number: int, folder: Path, recipe: Recipe, clock: Clock) -> str:
    """A folder with events, generated now or before, four at a time."""
    for first in range(0, number, 4):
        if not (done := folder / f"{first}.done").exists():
            clock.ask(EVENT_SECONDS)
            for _ in recipe.generate(min(4, number - first), seed, folder / "events", first):
                pass
            done.touch()
    return str(folder / "events")


def trained(seed: int, folder: Path, arguments: argparse.Namespace, clock: Clock) -> Run:
    """The network of a seed: generated, prepared, and trained now or before."""
    loaded = load(seed, arguments, arguments.sectors)
    data, run = folder / "dataset", folder / "run"
    if not (data / "manifest.json").exists():
        inputs: Any = {
            "train": [generated(seed, arguments.train, folder / "train", loaded.recipe, clock)],
            "val": [generated(VALIDATION + seed, 2, folder / "val", loaded.recipe, clock)],
        }
        cache = str(folder / "cache")
        clew.prepare(loaded.recipe, loaded.prepare, input=inputs, output=str(data), cache=cache, workers=1, seed=seed)
    clock.ask(EVENT_SECONDS)
    if not run.exists():
        clew.train(loaded.recipe, data, config=loaded.train, output=run, time_limit_minutes=clock.minutes)
    elif Run.open(run).state != "finished":
        resume(run, time_limit_minutes=clock.minutes)
    return Run.open(run)


def scorer(run: Run, recipe: Any) -> Score:
    """The network of a run, on the accelerator if there is one."""
    device, model = find_device(), recipe.model()
    checkpoint.load(model, run.checkpoint("last"))
    model.to(device).eval()

    def score(samples: Table) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            return np.asarray(model(to_batch(samples, recipe.columns).to(device)).cpu().numpy())

    return score


def evaluated(score: Score, number: int, seed: int, pileup: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Counts and times of one unseen event."""
    recipe = load(seed, arguments, 1).recipe
    assert isinstance(recipe, Triplets)
    raw = simulate_acts(1, OTHER + seed, number, gun=gun(arguments, pileup))
    events = whole_detector_hits(raw)
    found, seconds, times = {}, {}, whole_event.StepTimes()
    for name, each in {"network": score, "rule": chains.pull_logits, "perfect scores": perfect_scores}.items():
        times = whole_event.StepTimes()
        found[name] = of_hits(whole_event.find_tracks(recipe, each, events, times).values)
        seconds[name] = {"graph": times.graphs, "scores": times.network, "tracks": times.tracks}
    for name, seeds in FILTERS.items():
        tracks, total = acts_baseline.find_tracks(raw, seeds_per_point=seeds)
        found[name], seconds[name] = acts_baseline.track_hits(raw, tracks), {"total": total}
    return {
        "hits": len(events.ragged("x").values),
        "pairs": times.pairs[0],
        "triplets": times.triplets[0],
        "seconds": seconds,
        "counts": {name: count(events, *pairs) for name, pairs in found.items()},
    }


def perfect_scores(samples: Table) -> np.ndarray[Any, Any]:
    return np.where(samples.ragged("label").values > 0, 6.0, -6.0)


def of_hits(found: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Entries of track and hit from the track of each hit."""
    hit = np.flatnonzero(found >= 0)
    return found[hit], hit


def seed_results(seed: int, folder: Path, arguments: argparse.Namespace, clock: Clock) -> list[dict[str, Any]]:
    """The results of all unseen events of a seed: those of the pile-up of the training, and some of others."""
    folder.mkdir(parents=True, exist_ok=True)
    run, results, warm = trained(seed, folder, arguments, clock), [], False
    score = scorer(run, load(seed, arguments, 1).recipe)
    numbers = {arguments.pileup: arguments.test, **dict.fromkeys(arguments.others, arguments.other_test)}
    for pileup, number in ((each, number) for each, events in numbers.items() for number in range(events)):
        path = folder / f"test-pileup{pileup:g}-{number}.json"
        if not path.exists():
            clock.ask(EVENT_SECONDS * max(pileup / 100, 1))
            if not warm:  # compiles the loops, builds the detector
                warm = bool(evaluated(score, 0, seed, 1.0, arguments))
            path.write_text(json.dumps({"pileup": pileup, **evaluated(score, number, seed, pileup, arguments)}))
            print(f"seed {seed}, pile-up {pileup:g}, event {number}: done", flush=True)
        results.append(json.loads(path.read_text()))
    return results


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Every seed, then means and spreads."""
    torch.set_num_threads(1)
    if importlib.util.find_spec("acts") is None:
        print("skipped: pyacts is not installed: pip install 'clew[hep]'")
        return {}
    if arguments.quick:
        arguments.pileup, arguments.others, arguments.train, arguments.test = 10.0, [], 8, 2
        arguments.epochs, arguments.seeds = 3, [1]
    clock, results = Clock(arguments.seconds), dict[int, list[dict[str, Any]]]()
    for seed in arguments.seeds:
        try:
            results[seed] = seed_results(seed, (arguments.folder or folder) / f"seed-{seed}", arguments, clock)
        except StoppedError as error:
            print(f"seed {seed}: {error}; call again with the same --folder", flush=True)
            break
    tables = {f"{each:g}": shown(sheet, results, each) for each in (arguments.pileup, *arguments.others) if results}
    if len(results) == len(arguments.seeds):
        same_in_sectors(sheet, (arguments.folder or folder) / f"seed-{arguments.seeds[0]}" / "run", arguments)
        memory(sheet, arguments)
    return {
        "seeds": list(results),
        "pileup": arguments.pileup,
        "lost hits": arguments.lost,
        "settings": arguments.set,
        "events": {"train": arguments.train, "test": arguments.test, "others": arguments.other_test},
        "epochs": arguments.epochs,
        "sectors": arguments.sectors,
        "threads": 1,
        "tables": tables,
        "bins": {"pt": PT_BINS, "eta": ETA_BINS},
    }


def shown(sheet: Sheet, results: Mapping[int, list[dict[str, Any]]], pileup: float) -> dict[str, Counts]:
    """Means and spreads over seeds at one pile-up, and tables. Bars for the pile-up of the training."""
    events = {seed: [each for each in every if each["pileup"] == pileup] for seed, every in results.items()}
    rows, name = [each for every in events.values() for each in every], f"pile-up {pileup:g}"
    if not all(events.values()):
        return {}
    for item in ("hits", "pairs", "triplets"):
        sheet.state(f"{name}: {item} per event", statistics.mean(row[item] for row in rows), "")
    means = {finder: show_finder(sheet, name, finder, events) for finder in FINDERS}
    total = {finder: add([row["counts"][finder] for row in rows]) for finder in FINDERS}
    for variable, rate in ((variable, rate) for variable in ("pt", "eta") for rate in RATES):
        print(f"\n{name}\n\n" + table(total, variable, (rate,)), flush=True)
    network, best = means["network"], means[max(FILTERS, key=lambda each: means[each]["efficiency_50"])]
    lost = best["efficiency_50"] - network["efficiency_50"]
    sheet.bar(f"{name}: efficiency below the better filter's", lost, EFFICIENCY_GOAL, "", lower=True)
    sheet.bar(f"{name}: fakes, limit: its", network["fake"], best["fake"], "", lower=True)
    sheet.bar(f"{name}: CPU seconds per event", network["seconds"], SECONDS_GOAL, "s", lower=True)
    return total


def show_finder(sheet: Sheet, name: str, finder: str, events: Mapping[int, list[dict[str, Any]]]) -> dict[str, float]:
    """Rates (mean and spread over seeds) and CPU seconds of one finder. Returns the means."""
    each = [rates(add([row["counts"][finder] for row in rows])) for rows in events.values()]
    means = {rate: statistics.mean(figures[rate] for figures in each) for rate in RATES}
    for rate in RATES:
        sheet.state(f"{name}, {finder}: {rate}", means[rate], "")
        if len(each) > 1:
            sheet.state(f"{name}, {finder}: {rate}, spread", statistics.stdev(figures[rate] for figures in each), "")
    rows = [row["seconds"][finder] for every in events.values() for row in every]
    for step in rows[0]:
        sheet.state(f"{name}, {finder}: CPU seconds, {step}", statistics.mean(row[step] for row in rows), "s")
    return {**means, "seconds": statistics.mean(sum(row.values()) for row in rows)}


def same_in_sectors(sheet: Sheet, run: Path, arguments: argparse.Namespace) -> None:
    """How many tracks of whole events are found with the same hits when the events are cut into sectors."""
    seed, sets = arguments.seeds[0], list[set[frozenset[int]]]()
    events = whole_detector_hits(simulate_acts(1, OTHER + seed, 0, gun=gun(arguments, arguments.pileup)))
    for sectors in (1, arguments.sectors):
        recipe = load(seed, arguments, sectors).recipe
        assert isinstance(recipe, Triplets)
        found = whole_event.find_tracks(recipe, scorer(Run.open(run), recipe), events).values
        order = np.argsort(found, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(found[order])) + 1)
        sets.append({frozenset(group.tolist()) for group in groups if found[group[0]] >= 0})
    sheet.state("share of the tracks that are the same in sectors", len(sets[0] & sets[1]) / len(sets[0]), "")


def memory(sheet: Sheet, arguments: argparse.Namespace) -> None:
    """Peak memory of the largest events, whole and in sectors."""
    pileup = max([arguments.pileup, *arguments.others])
    for work, sectors in ((work, sectors) for work in ("tracks", "step") for sectors in (1, arguments.sectors)):
        used = peak(work, sectors, pileup, OTHER)
        sheet.state(f"pile-up {pileup:g}: memory, {work}, sectors of an event: {sectors}", used, "MB")


if __name__ == "__main__":
    parser = options(__doc__, "one seed, 8 + 2 events with 10 pile-up vertices, 3 epochs")
    parser.add_argument("--folder", type=Path, help="events, runs and results, to continue with")
    parser.add_argument("--seconds", type=float, help="stop by itself after so long")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--pileup", type=float, default=100.0, help="mean number of other vertices")
    parser.add_argument("--train", type=int, default=32, help="events to train on, per seed")
    parser.add_argument("--test", type=int, default=8, help="unseen events, per seed")
    parser.add_argument("--others", type=float, nargs="*", default=[20.0, 200.0], help="other pile-up to evaluate at")
    parser.add_argument("--other-test", type=int, default=2, help="unseen events of each of them, per seed")
    parser.add_argument("--lost", type=float, default=0.0, help="share of hits removed at random")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--sectors", type=int, default=8, help="sectors of a training event")
    parser.add_argument("--set", action="append", default=[], help="a setting more; use another --folder for it")
    sys.exit(main(measure, parser))
