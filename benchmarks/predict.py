"""What `clew predict` costs over a bare inference loop.

Contestants take turns in one process, a short block each, in an order shuffled every round; compared are 25th
percentiles of block times, and the bare loop against itself shows what noise is left. Both have the same model and the
same batches, ready in memory. The bare loop is what a user would write: forward under `no_grad`, outputs to NumPy and,
for the GraphNet, the recipe's track building. clew's engine is what `clew predict` runs between reading and writing:
from ready batches to a table with one row per event. Also stated, without limits: the same from a table in memory, of
which clew makes the batches, and a complete `clew.predict` from a dataset on disk to a file.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _contest import Sheet, alternate, main, options, quartile, seconds
from torch import nn

import clew
from clew import Batch, Dataset, Recipe, Run, Table
from clew.inference.model_runner import ModelRunner, SamplePortion
from clew.inference.parallel_inference import InferenceTask, unit_results
from clew.inference.predict import PredictionRows, PredictionWork
from clew.jobs.rank_info import RankInfo
from clew.recipes.tracking import Tracking

CPU = torch.device("cpu")
SIZE = 256
BAR = 0.95
Contestants = dict[str, Callable[[], Any]]


class Flat(Recipe):
    """A regression of 20 numbers to one."""

    columns = ("x",)

    def prepare(self, events: Table) -> Table:
        return events

    def model(self) -> nn.Module:
        layers = [nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)]
        return nn.Sequential(*layers)

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(batch["x"])


@dataclass(frozen=True)
class InMemory:
    """Samples of a table in units of some batches; nothing is read ahead."""

    table: Table
    batches: int
    ahead: int = 0
    title: str = "a table"

    @property
    def total(self) -> int | None:
        return len(self.table)

    def check(self, columns: Any) -> None:
        """Batches that are ready."""

    def units(self, size: int, ranks: int) -> Iterator[Callable[[], Table]]:
        step = size * self.batches
        return (partial(self.table.slice, first, first + step) for first in range(0, len(self.table), step))


def contestants(recipe: Recipe, table: Table, batches: int) -> Contestants:
    """The bare loop (twice) and clew's engine, from ready batches and from the table."""
    engine = ModelRunner(recipe, recipe.model(), CPU, SIZE)
    samples = InMemory(table, batches)
    task = InferenceTask(Run(Path()), recipe, "best", samples, SIZE, PredictionWork(PredictionRows(), None, None, None))
    portions = [engine.portion(load()) for load in samples.units(SIZE, 1)]
    ready = [
        (portion.samples.slice(place * SIZE, (place + 1) * SIZE), batch)
        for portion in portions
        for place, batch in enumerate(portion.batches)
    ]

    def from_table() -> Table:
        with contextlib.closing(unit_results(task, engine, RankInfo())) as results:
            return clew.concat([rows for _, _, rows in results])

    alone = partial(bare, recipe, engine.model, ready)
    return {"bare": alone, "clew": partial(ours, task, engine, portions), "table": from_table, "again": alone}


def bare(recipe: Recipe, model: nn.Module, ready: list[tuple[Table, Batch]]) -> Any:
    """The loop a user would write."""
    with torch.no_grad():
        if type(recipe).reconstruct is Recipe.reconstruct:
            return torch.cat([recipe.forward(model, batch) for _, batch in ready]).numpy()
        return [
            recipe.reconstruct(samples, {"output": recipe.forward(model, batch).numpy()}) for samples, batch in ready
        ]


def ours(task: InferenceTask, engine: ModelRunner, portions: list[SamplePortion]) -> Table:
    """What `clew predict` does between reading and writing."""
    return clew.concat([task.work.one(engine, portion) for portion in portions])


def compare(sheet: Sheet, title: str, contestants: Contestants, rounds: int) -> None:
    """clew's speed over the bare loop's, by 25th percentiles."""
    times = alternate({name: partial(seconds, work) for name, work in contestants.items()}, rounds)
    quartiles = {name: quartile(each) for name, each in times.items()}
    sheet.bar(f"{title}: clew against a bare loop", quartiles["bare"] / quartiles["clew"], BAR, "times")
    sheet.state(f"{title}: control, the bare loop against itself", quartiles["bare"] / quartiles["again"], "times")
    sheet.state(f"{title}: from a table, batches cut by clew", quartiles["bare"] / quartiles["table"], "times")


def flat_table(events: int) -> Table:
    rng = np.random.default_rng(1)
    return Table({"event": np.arange(events), "x": rng.normal(size=(events, 20)).astype(np.float32)})


def graphs(events: int, folder: Path) -> Dataset:
    for _ in Tracking().generate(events, 1, folder / "events"):
        pass
    share = {"train": 0.1, "val": 0.1, "test": 0.8}
    source = [str(folder / "events")]
    return clew.prepare("tracking", input=source, output=str(folder / "dataset"), split=share, cache=str(folder / "c"))


def on_disk(sheet: Sheet, dataset: Dataset, folder: Path) -> None:
    """Events per second of a complete `clew.predict`, by the kind of file."""
    run = clew.train("tracking", dataset, epochs=1, steps=2, output=folder / "run")
    for ending in ("h5", "parquet", "root"):
        taken = seconds(partial(clew.predict, run, output=folder / f"out.{ending}"))
        sheet.state(f"clew.predict, dataset to .{ending}", dataset.splits["test"] / taken, "events/s")


def measure(sheet: Sheet, folder: Path, arguments: argparse.Namespace) -> Mapping[str, Any]:
    torch.set_num_threads(1)
    quick = arguments.quick
    compare(sheet, "MLP", contestants(Flat(), flat_table(SIZE * 512), 128), 20 if quick else 60)
    dataset = graphs(700 if quick else 1600, folder)
    compare(sheet, "GraphNet", contestants(Tracking(), dataset.read("test"), 2), 5 if quick else 15)
    on_disk(sheet, dataset, folder)
    return {"threads": 1}


if __name__ == "__main__":
    sys.exit(main(measure, options(__doc__, "fewer repetitions")))
