"""How well the shipped tracking recipes do, from raw files to tracks, over several seeds.

Every seed makes its own events, its own split and its own training, on one process with one thread; figures are those
of events that no network has seen. Real data (CLEW_TEST_DATA, default ../shared/data) is used if it is available: the
public BES-III sample is evaluated with the networks trained on generated events; the TrackML graphs are split by event.
The part `acts` needs pyacts (the extra `hep`): a hit graph and ACTS' Kalman filter on the very same unseen events.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from _contest import Sheet, main, options

import clew
from clew import Table
from clew.data.dataset.batch import to_batch
from clew.recipes.tracking import Tracking, acts_baseline, trackml, tracks
from clew.recipes.tracking.particle_gun import KINDS
from clew.recipes.tracking.track_finder import sigmoid
from clew.runs import Run
from clew.runs.summary import summarize
from clew.settings import load_settings
from clew.training import checkpoint

DATA = Path(os.environ.get("CLEW_TEST_DATA", "../shared/data")) / "tracking"
BES3, TRACKML = DATA / "ariadne/cgem_50_events.txt", DATA / "trackml_graphs/trackml_subgraphs_repacked.npz"
SHOWN = (
    "efficiency",
    "purity",
    "event_ratio",
    "efficiency_50",
    "efficiency_75",
    "purity_50",
    "purity_75",
    "trackml_score",
    "f1",
)
BARS = {
    ("GraphNet", "unseen", "efficiency"): 0.96,
    ("GraphNet", "unseen", "purity"): 0.75,
    ("TrackNETv2", "unseen", "efficiency"): 0.95,
    ("TrackNETv2", "unseen", "purity"): 0.71,
    ("TrackML graphs", "unseen", "edge_auc"): 0.97,
    ("hit graph, ACTS muons", "unseen", "efficiency_75"): 0.95,
    ("hit graph, ACTS ttbar-like", "unseen", "efficiency_75"): 0.95,
}
ACTS_SETTINGS = ["detector.name=acts", "train.epochs=16", "train.batch_size=2", "train.optimizer.lr_batch=2"]
ACTS_EVENTS, ACTS_UNSEEN = 400, 100
OTHER = 1000
"""Added to a seed: the unseen ACTS events are a separate sample."""
Figures = dict[tuple[str, str], dict[str, float]]
Found = dict[tuple[str, str], list[dict[str, float]]]
"""Figures of every seed."""


class PlainCut(Tracking):
    """The same network with the cut of the original: every edge above one half, chains do not compete for hits."""

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        scores = sigmoid(outputs["output"])
        labels = tracks.number_in_events(samples.ragged("x"), tracks.from_edges(samples, scores, 0.5, "components"))
        return Table({"found_track": labels, "score": samples.ragged("edge").share(scores)})


def train(name: str, folder: Path, seed: int, settings: list[str], *, events: int = 0, input: str = "") -> Run:
    """A run on generated events, or on a file."""
    loaded = load_settings(name, [*settings, "train.workers=1", "train.threads=1", f"train.seed={seed}"])
    if events:
        for _ in loaded.recipe.generate(events, seed, folder / "events"):
            pass
        input = str(folder / "events")
    output, cache = str(folder / "dataset"), str(folder / "cache")
    plan = loaded.prepare
    data = clew.prepare(loaded.recipe, plan, input=[input], output=output, cache=cache, workers=1, seed=seed)
    return clew.train(loaded.recipe, data, config=loaded.train, output=folder / "run")


def evaluated(title: str, run: Run) -> Figures:
    """Return the results on the unseen split and on the public sample."""
    results = {(title, "unseen"): figures(clew.evaluate(run))}
    if BES3.is_file():
        results[title, "public sample"] = figures(clew.evaluate(run, input=[str(BES3)], name="real"))
    results[title, "unseen"]["events/s while training"] = summarize(run).times.samples_per_second or math.nan
    return results


def figures(result: Any) -> dict[str, float]:
    return {name: result.metrics[name].value for name in (*SHOWN, "edge_auc")}


def graphnet(seed: int, folder: Path) -> Figures:
    run = train("tracking", folder, seed, ["train.epochs=20"], events=3000)
    results = evaluated("GraphNet", run)
    results["GraphNet, edges above 0.5 joined", "unseen"] = figures(clew.evaluate(run, recipe=PlainCut, name="plain"))
    return results


def tracknet(seed: int, folder: Path) -> Figures:
    return evaluated("TrackNETv2", train("tracknet", folder, seed, [], events=4000))


def hitgraph(seed: int, folder: Path) -> Figures:
    return evaluated("hit graph", train("hitgraph", folder, seed, [], events=3000))


def trackml_graphs(seed: int, folder: Path) -> Figures:
    settings = ["detector.name=trackml", "train.epochs=4", "tracks.threshold=0.5"]
    run = train("hitgraph", folder, seed, settings, input=str(TRACKML))
    results = figures(clew.evaluate(run))
    results["events/s while training"] = summarize(run).times.samples_per_second or math.nan
    return {("TrackML graphs", "unseen"): results}


def acts(seed: int, folder: Path) -> Figures:
    """Muons and ttbar-like events, a network for each kind."""
    return {key: values for kind in KINDS for key, values in acts_events(kind, seed, folder / kind).items()}


def acts_events(kind: str, seed: int, folder: Path) -> Figures:
    """Compare a network and the Kalman filter on the same unseen events, both by their hits in the barrel."""
    settings = [*ACTS_SETTINGS, f"gun.particles={kind}"]
    run = train("hitgraph", folder, seed, settings, events=ACTS_EVENTS)
    recipe = load_settings("hitgraph", settings).recipe
    files = [str(path) for path, _ in recipe.generate(ACTS_UNSEEN, OTHER + seed, folder / "unseen")]
    events = clew.concat([table for path in files for table in clew.readers.read(path)])
    network = figures(clew.evaluate(run, input=files, name="unseen"))
    network["events/s, hits to tracks"] = speed(run, recipe, events)
    network["events/s while training"] = summarize(run).times.samples_per_second or math.nan
    results = acts_baseline.measure_filter(events, barrel=True)
    filtered = {name: results[name] for name in SHOWN if name in results}
    filtered["events/s, hits to tracks"] = results["events_per_second"]
    return {(f"hit graph, ACTS {kind}", "unseen"): network, (f"Kalman filter, ACTS {kind}", "unseen"): filtered}


def speed(run: Run, recipe: Any, events: Table) -> float:
    """Events per second of CPU time, one thread: hits to graphs, the network, tracks; one event at a time."""
    hits, model = trackml.barrel_hits(events), recipe.model()
    checkpoint.load(model, run.checkpoint("best"))
    model.eval()
    start = time.process_time()
    with torch.inference_mode():
        for number in range(len(hits)):
            samples = recipe.prepare(hits.slice(number, number + 1))
            outputs = {"output": model(to_batch(samples, recipe.columns)).numpy()}
            recipe.reconstruct(samples, outputs)
    return len(hits) / (time.process_time() - start)


PARTS: dict[str, Callable[[int, Path], Figures]] = {
    "graphnet": graphnet,
    "tracknet": tracknet,
    "hitgraph": hitgraph,
    "trackml": trackml_graphs,
    "acts": acts,
}


def missing(part: str) -> str:
    """What a part needs and lacks, in one line; empty if it can run."""
    if part == "trackml" and not TRACKML.is_file():
        return f"no {TRACKML}"
    if part == "acts" and importlib.util.find_spec("acts") is None:
        return "pyacts is not installed: pip install 'clew[hep]'"
    return ""


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    """Every part for every seed, then means and spreads."""
    seeds = arguments.seeds[:1] if arguments.quick else arguments.seeds
    parts = arguments.only or list(PARTS)
    for name in filter(missing, parts):
        print(f"{name}: skipped, {missing(name)}", flush=True)
    results: Found = {}
    for seed in seeds:
        for name in (name for name in parts if not missing(name)):
            start = time.perf_counter()
            with tempfile.TemporaryDirectory(dir=folder) as place:
                for key, values in PARTS[name](seed, Path(place)).items():
                    results.setdefault(key, []).append(values)
                    print(", ".join(key), *(f"{metric} {value:.4f}" for metric, value in values.items()), sep="; ")
            print(f"seed {seed}, {name}: {time.perf_counter() - start:.0f} s", flush=True)
    shown(sheet, results)
    every = {", ".join(key): each for key, each in results.items()}
    return {"seeds": seeds, "workers": 1, "threads": 1, "figures": every}


def shown(sheet: Sheet, results: Found) -> None:
    """Means and, where there are several seeds, spreads; the bars are on means."""
    for key, each in results.items():
        for metric in each[0]:
            values, name = [one[metric] for one in each], ", ".join((*key, metric))
            limit = BARS.get((*key, metric))
            if limit is None:
                sheet.state(name, statistics.mean(values), "")
            else:
                sheet.bar(name, statistics.mean(values), limit, "")
            if len(values) > 1:
                sheet.state(f"{name}, spread", statistics.stdev(values), "")


if __name__ == "__main__":
    parser = options(__doc__, "one seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", choices=list(PARTS), action="append", help="some of the parts")
    sys.exit(main(measure, parser))
