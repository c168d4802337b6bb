"""ONNX inference of exported models against torch's, on the same batches and cores.

Each model is trained for a few steps, exported by `clew export` (which compares it with the original first), and run
on the same ready batches as its original: torch in inference mode, ONNX through what `clew predict` uses. Both have
two threads that do not spin while they wait, and each the size of batches, 32 or 256 events, at which it is faster: the
smaller keeps what lies between layers in the caches, the larger spreads the cost of a call. They take turns in one
process, a short block each, in an order shuffled every round; compared are 25th percentiles of block times, and torch
against itself shows what noise is left.

A model is added by a line in `MODELS`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn

import clew
from clew import Batch, Dataset, Ragged, Run, Table
from clew.data.dataset.batch import to_batch
from clew.inference.exported_model import load
from clew.runs.environment import capture
from clew.settings import load_settings
from clew.training import checkpoint
from clew.training.run_recipe import recipe_of_run

THREADS, SIZES, BAR = 2, (32, 256), 1.0
Contestants = dict[str, Callable[[], Any]]


class Gru(nn.Module):
    """Classifies sequences of 4 numbers into 3 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(4, 64, batch_first=True), nn.Linear(64, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        output, _ = self.gru(x)
        last = (mask.sum(1) - 1).clamp(min=0)
        return self.head(output[torch.arange(x.shape[0], device=x.device), last])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def cnn() -> nn.Module:
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 6 * 6, 2))


def flat(events: int, *shape: int) -> Table:
    rng = np.random.default_rng(1)
    return Table({"X": rng.normal(size=(events, *shape)).astype(np.float32), "Y": rng.integers(0, 2, events)})


def sequences(events: int) -> Table:
    rng = np.random.default_rng(1)
    lengths = rng.integers(5, 60, events)
    values = rng.normal(size=(int(lengths.sum()), 4)).astype(np.float32)
    return Table({"X": Ragged.from_lengths(values, lengths), "Y": rng.integers(0, 3, events)})


def plain_run(folder: Path, make: Callable[[], nn.Module], data: Callable[[], Table]) -> Run:
    """A run of a model without a recipe."""
    return clew.train(make(), data(), output=folder / "run", epochs=1, steps=2, features="X", labels="Y")


def recipe_run(folder: Path, name: str, settings: tuple[str, ...] = (), events: int = 700) -> Run:
    """A run of a shipped recipe on its synthetic events; recipes with the same generator get the same ones."""
    chosen = load_settings(name, [*settings, "train.epochs=1", "train.steps=2"])
    events_folder = folder.parent / f"{type(chosen.recipe).generate.__qualname__}-{events}"
    if not events_folder.exists():
        for _ in chosen.recipe.generate(events, 1, events_folder):
            pass
    share = {"train": 0.1, "val": 0.1, "test": 0.8}
    source, output, cache = [str(events_folder)], str(folder / "data"), str(folder / "cache")
    data = clew.prepare(chosen.recipe, input=source, output=output, split=share, cache=cache)
    return clew.train(chosen.recipe, data, config=chosen.train, output=folder / "run")


MODELS: dict[str, tuple[Callable[[Path], Run], Callable[[], Any] | None]] = {
    "MLP 20-64-64-2": (partial(plain_run, make=mlp, data=partial(flat, 8000, 20)), mlp),
    "CNN on 32 x 32": (partial(plain_run, make=cnn, data=partial(flat, 2000, 1, 32, 32)), cnn),
    "GRU of 64 on sequences": (partial(plain_run, make=Gru, data=partial(sequences, 2000)), Gru),
    "tracking (GraphNet)": (partial(recipe_run, name="tracking"), None),
    "hitgraph (interaction network)": (partial(recipe_run, name="hitgraph", events=400), None),
    "jets (GRU)": (partial(recipe_run, name="jets", settings=("model.kind=gru",)), None),
    "jets (convolution)": (partial(recipe_run, name="jets", settings=("model.kind=conv",)), None),
    "jets (transformer)": (partial(recipe_run, name="jets", settings=("model.kind=transformer",)), None),
    "jetimages (CNN)": (partial(recipe_run, name="jetimages", settings=("model.kind=cnn",)), None),
    "jetimages (cloud)": (partial(recipe_run, name="jetimages", settings=("model.kind=cloud",)), None),
    "jetfeatures (MLP)": (partial(recipe_run, name="jetfeatures"), None),
}
"""Names, a function that trains a run of each, and a function that builds the models defined here."""


def contestants(run: Run, make: Callable[[], Any] | None, folder: Path) -> tuple[Contestants, int, float]:
    """torch (twice) and ONNX on batches of each size, the events of a block, and the difference of both."""
    custom_recipe = None if make is None else make()
    exported = clew.export(run, to="onnx", output=folder / "model.onnx", recipe=custom_recipe)
    recipe, config = recipe_of_run(run, custom_recipe)
    model = recipe.model()
    checkpoint.load(model, run.checkpoint("best"))
    model.eval()
    portable = load(exported.path)
    data = Dataset(config.dataset)
    samples = data.read("test" if data.splits.get("test") else "val")
    calls: Contestants = {}
    for size in SIZES:
        ready = [to_batch(samples.slice(first, first + size), recipe.columns) for first in range(0, len(samples), size)]

        def ask(network: Callable[[Batch], Any], ready: Sequence[Batch] = ready) -> None:
            with torch.inference_mode():
                for batch in ready:
                    network(batch)

        original = partial(ask, lambda batch: recipe.forward(model, batch))
        calls |= {f"torch {size}": original, f"onnx {size}": partial(ask, portable), f"again {size}": original}
    return calls, len(samples), exported.facts.difference


def blocks(contestants: Contestants, rounds: int, seconds: float = 0.05) -> dict[str, float]:
    """25th percentile of the seconds per pass of each contestant, over rounds in which all take turns."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    order, rng, repeats = list(contestants), random.Random(0), {}
    for name, work in contestants.items():
        work()
        start = time.perf_counter()
        work()
        repeats[name] = max(1, round(seconds / (time.perf_counter() - start)))
    for _ in range(rounds):
        rng.shuffle(order)
        for name in order:
            start = time.perf_counter()
            for _ in range(repeats[name]):
                contestants[name]()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return {name: float(np.percentile(block_times, 25)) for name, block_times in times.items()}


def measured(title: str, folder: Path, rounds: int) -> dict[str, Any]:
    """The bar of one model, printed when it is measured."""
    make_run, make_model = MODELS[title]
    run = make_run(folder)
    torch.set_num_threads(THREADS)  # training has set its own
    calls, events, far = contestants(run, make_model, folder)
    times = blocks(calls, rounds)
    size = {contestant: min(SIZES, key=lambda size: times[f"{contestant} {size}"]) for contestant in ("torch", "onnx")}
    results = {contestant: times[f"{contestant} {size[contestant]}"] for contestant in size} | {
        "again": times[f"again {size['torch']}"]
    }
    value, control = results["torch"] / results["onnx"], results["torch"] / results["again"]
    name, ok, load = f"{title}: ONNX against torch", value >= BAR, os.getloadavg()[0]
    print(f"{name:58} {value:8.2f} times  >= {BAR}  {'ok' if ok else 'MISSED'}")
    print(f"{'  control: torch against itself':58} {control:8.2f} times")
    speeds = f"{events / results['onnx']:,.0f} against {events / results['torch']:,.0f} events/s"
    sizes = f"batches of {size['onnx']} against {size['torch']}"
    print(f"  {speeds}; {sizes}; they differ by {far:.1g} at most; load {load:.1f}", flush=True)
    more = {"control": control, "load": load, "events/s": events / results["onnx"], "batch": size}
    return {"name": name, "value": value, "bar": BAR, "unit": "times", "ok": ok, **more}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--only", help="models with this in their name")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rounds = 10 if arguments.quick else 40
    with tempfile.TemporaryDirectory() as temporary:
        chosen = [title for title in MODELS if (arguments.only or "") in title]
        bars = [measured(title, Path(temporary) / str(number), rounds) for number, title in enumerate(chosen)]
    if arguments.json:
        conditions = {"quick": arguments.quick, "cores": psutil.cpu_count(), "threads": THREADS, "batches": SIZES}
        results = {"bars": bars, "conditions": {**conditions, "environment": capture()}}
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(not all(each["ok"] for each in bars))


if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:  # as in `clew`: threads of torch would spin, and be slower with other load
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    sys.exit(main())
