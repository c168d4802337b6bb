"""Tracks in the whole detector at pile-up: the recipe `triplets` and ACTS' Kalman filter on the same unseen events.

    python benchmarks/quality_tracking_pileup.py --folder work --seconds 570

Every seed generates its own events (GenericDetector, ttbar-like with `--pileup` other vertices), trains on sectors of
them, and is evaluated on whole events of another sample. One process with one thread. Tables by pT and eta, CPU seconds
per event of every step, and what perfect scores of triplets would give. What counts is defined in `_track_figures.py`.
Needs pyacts (the extra `hep`).

It works in pieces: with `--seconds` it stops after that time, and continues when called again with the same `--folder`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet, main, options
from _track_figures import ETA_BINS, PT_BINS, RATES, Counts, add, count, rates, table

import clew
from clew import Run, Table
from clew.data.dataset.batch import to_batch
from clew.errors import StoppedError
from clew.recipes.tracking import acts_baseline, whole_event
from clew.recipes.tracking.acts import simulate_acts
from clew.recipes.tracking.particle_gun import ParticleGun
from clew.recipes.tracking.recipe_triplets import Triplets, whole_detector_hits
from clew.settings import Settings, load_settings
from clew.training import checkpoint
from clew.training.api import resume

RECIPE = "clew.recipes.tracking:Triplets"
FINDERS = ("network", "filter", "perfect scores")
OTHER = 1000
"""Added to a seed: the unseen events are a separate sample."""
SPARE = 15.0
"""Seconds that are reserved for stopping."""
EVENT_SECONDS = 60.0
"""Seconds that must be left to start an event."""
GOALS = {"efficiency": 0.01, "seconds": 10.0}
"""Efficiency below the filter's, CPU seconds per event of the network: the aims."""


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
            raise StoppedError("the time is over: call again with the same --folder")


def load(seed: int, arguments: argparse.Namespace, sectors: int) -> Settings:
    settings = [
        f"gun.pileup={arguments.pileup}",
        "gun.particles=ttbar-like",
        f"sectors.number={sectors}",
        f"train.epochs={arguments.epochs}",
        "train.workers=1",
        "train.threads=1",
        f"train.seed={seed}",
        *arguments.set,
    ]
    return load_settings(RECIPE, settings)


def trained(seed: int, folder: Path, arguments: argparse.Namespace, clock: Clock) -> Run:
    """The network of a seed: generated, prepared, and trained now or before."""
    loaded = load(seed, arguments, arguments.sectors)
    events, data, run = folder / "events", folder / "dataset", folder / "run"
    for first in range(0, arguments.train, 4):
        if not (done := folder / f"events-{first}.done").exists():
            clock.ask(EVENT_SECONDS)
            for _ in loaded.recipe.generate(min(4, arguments.train - first), seed, events, first):
                pass
            done.touch()
    if not (data / "manifest.json").exists():
        clock.ask(EVENT_SECONDS)
        clew.prepare(
            loaded.recipe,
            loaded.prepare,
            input=[str(events)],
            output=str(data),
            cache=str(folder / "cache"),
            workers=1,
            seed=seed,
        )
    clock.ask(EVENT_SECONDS)
    limit = {} if clock.minutes is None else {"time_limit_minutes": clock.minutes}
    if not run.exists():
        clew.train(loaded.recipe, data, config=loaded.train, output=run, **limit)
    elif Run.open(run).state != "finished":
        resume(run, **limit)
    return Run.open(run)


def scorer(run: Run, recipe: Triplets) -> Callable[[Table], np.ndarray[Any, Any]]:
    model = recipe.model()
    checkpoint.load(model, run.checkpoint("last"))
    model.eval()

    def score(samples: Table) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            return np.asarray(model(to_batch(samples, recipe.columns)).numpy())

    return score


def evaluated(run: Run, number: int, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Counts and times of one unseen event."""
    gun = ParticleGun(particles="ttbar-like", pileup=arguments.pileup)
    recipe = load(seed, arguments, 1).recipe
    assert isinstance(recipe, Triplets)
    raw = simulate_acts(1, OTHER + seed, number, gun=gun)
    events = whole_detector_hits(raw)
    times, perfect = whole_event.StepTimes(), whole_event.StepTimes()
    before = peak_memory()
    network = whole_event.find_tracks(recipe, scorer(run, recipe), events, times)
    used = peak_memory() - before
    oracle = whole_event.find_tracks(recipe, perfect_scores, events, perfect)
    tracks, seconds = acts_baseline.find_tracks(raw)
    found = {
        "network": of_hits(network.values),
        "filter": acts_baseline.track_hits(raw, tracks),
        "perfect scores": of_hits(oracle.values),
    }
    return {
        "hits": len(events.ragged("x").values),
        "pairs": times.pairs[0],
        "triplets": times.triplets[0],
        "seconds": {
            "graphs": times.graphs,
            "network": times.network,
            "tracks": times.tracks,
            "network in all": times.graphs + times.network + times.tracks,
            "filter in all": seconds,
        },
        "memory": used,
        "counts": {name: count(events, *pairs) for name, pairs in found.items()},
    }


def perfect_scores(samples: Table) -> np.ndarray[Any, Any]:
    return np.where(samples.ragged("label").values > 0, 6.0, -6.0)


def of_hits(found: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Entries of track and hit from the track of each hit."""
    hit = np.flatnonzero(found >= 0)
    return found[hit], hit


def peak_memory() -> float:
    """The largest memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def seed_results(seed: int, folder: Path, arguments: argparse.Namespace, clock: Clock) -> list[dict[str, Any]]:
    """The results of all unseen events of a seed."""
    folder.mkdir(parents=True, exist_ok=True)
    run, results = trained(seed, folder, arguments, clock), []
    for number in range(arguments.test):
        path = folder / f"test-{number}.json"
        if not path.exists():
            clock.ask(EVENT_SECONDS)
            if not results:  # compiles the loops, builds the detector
                evaluated(run, arguments.test, seed, arguments)
            path.write_text(json.dumps(evaluated(run, number, seed, arguments)))
            print(f"seed {seed}, event {number}: done", flush=True)
        results.append(json.loads(path.read_text()))
    return results


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Every seed, then means and spreads."""
    torch.set_num_threads(1)
    if importlib.util.find_spec("acts") is None:
        print("skipped: pyacts is not installed: pip install 'clew[hep]'")
        return {}
    if arguments.quick:
        arguments.pileup, arguments.train, arguments.test, arguments.epochs, arguments.seeds = 10.0, 12, 2, 3, [1]
    clock, results = Clock(arguments.seconds), {}
    for seed in arguments.seeds:
        try:
            results[seed] = seed_results(seed, (arguments.folder or folder) / f"seed-{seed}", arguments, clock)
        except StoppedError as error:
            print(f"seed {seed}: {error}", flush=True)
            break
    if results:
        shown(sheet, results)
    return {
        "seeds": list(results),
        "pileup": arguments.pileup,
        "events": {"train": arguments.train, "test": arguments.test},
        "epochs": arguments.epochs,
        "sectors": arguments.sectors,
        "threads": 1,
        "tables": {name: add([counts(each, name) for each in results.values()]) for name in FINDERS if results},
        "bins": {"pt": PT_BINS, "eta": ETA_BINS},
    }


def counts(results: list[dict[str, Any]], finder: str) -> Counts:
    return add([each["counts"][finder] for each in results])


def shown(sheet: Sheet, results: Mapping[int, list[dict[str, Any]]]) -> None:
    """Means and spreads over seeds, the tables, and the bars."""
    means: dict[tuple[str, str], float] = {}
    for finder in FINDERS:
        each = [rates(counts(events, finder)) for events in results.values()]
        for rate in RATES:
            values = [figures[rate] for figures in each]
            means[finder, rate] = statistics.mean(values)
            sheet.state(f"{finder}: {rate}", means[finder, rate], "")
            if len(values) > 1:
                sheet.state(f"{finder}: {rate}, spread", statistics.stdev(values), "")
    every = [event for events in results.values() for event in events]
    for name in ("hits", "pairs", "triplets", "memory"):
        sheet.state(f"{name} per event", statistics.mean(event[name] for event in every), "MB" * (name == "memory"))
    for name in every[0]["seconds"]:
        sheet.state(f"CPU seconds per event: {name}", statistics.mean(e["seconds"][name] for e in every), "s")
    total = {finder: add([counts(events, finder) for events in results.values()]) for finder in FINDERS}
    for variable in ("pt", "eta"):
        print(table(total, variable), flush=True)
    lost = means["filter", "efficiency_50"] - means["network", "efficiency_50"]
    sheet.bar("efficiency below the filter's", lost, GOALS["efficiency"], "", lower=True)
    sheet.bar("fake rate, limit: the filter's", means["network", "fake"], means["filter", "fake"], "", lower=True)
    seconds = statistics.mean(event["seconds"]["network in all"] for event in every)
    sheet.bar("CPU seconds per event", seconds, GOALS["seconds"], "s", lower=True)


if __name__ == "__main__":
    parser = options(__doc__, "one seed, 12 + 2 events with 10 pile-up vertices, 3 epochs")
    parser.add_argument("--folder", type=Path, help="events, runs and results, to continue with")
    parser.add_argument("--seconds", type=float, help="stop by itself after so long")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--pileup", type=float, default=100.0, help="mean number of other vertices")
    parser.add_argument("--train", type=int, default=32, help="events to train on, per seed")
    parser.add_argument("--test", type=int, default=8, help="unseen events, per seed")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--sectors", type=int, default=8, help="sectors of a training event")
    parser.add_argument("--set", action="append", default=[], help="a setting more; use another --folder for it")
    sys.exit(main(measure, parser))
