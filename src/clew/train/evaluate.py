"""`clew.evaluate`: how good a run's model is, on a split of a dataset or on raw events."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from clew import tally
from clew.config import Document, validate
from clew.dataset import Dataset, Manifest
from clew.errors import ConfigError, DataError, RecipeError
from clew.figure import Figure
from clew.files import write_text
from clew.ledger import Run
from clew.prepare import stages
from clew.prepare.inputs import locations
from clew.recipe import Recipe, find, resolve
from clew.table import Table
from clew.tally import Tally
from clew.train import checkpoint, judge
from clew.train.columns import Columns
from clew.train.config import TrainConfig
from clew.train.loop import best_device
from clew.transforms import Transform

CHUNK = 256
"""Samples judged at a time; the figures do not depend on it."""


@dataclass(frozen=True)
class Evaluation:
    """What came out: tallies with value, error and figure, the number of samples, and the seconds it took."""

    name: str
    tallies: dict[str, Tally]
    events: int
    seconds: float


def evaluate(
    run: Run | str | Path,
    *,
    data: str | Path | Dataset | None = None,
    split: str | None = None,
    input: Sequence[str] = (),
    name: str | None = None,
    weights: str = "best",
    recipe: Any = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Evaluation:
    """Judge a run's model and write the figures into the run's folder.

    On `split` (default: `test`, or `val` where there is none) of a dataset (default: that of the run), or on raw events
    (`input`: files or globs), which go through the run's own recipe and fitted transforms. `name` is what the report
    calls it. `recipe` is needed only for one (or for a model) that was typed into a notebook and cannot be found again.
    `progress` is called with the number of events done and, where it is known, of all.

    Raises:
        RunError, DataError, RecipeError, ConfigError: something needed is missing or does not fit.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    work, config = recipe_of(run, recipe)
    model = work.model()
    checkpoint.load(model, run.checkpoint(weights))
    if input:
        title, chunks, total = name or "events", _from_events(run, work, input), None
        shown = ", ".join(input)
    else:
        dataset = data if isinstance(data, Dataset) else Dataset(data or config.dataset)
        split = split or next((each for each in ("test", "val") if dataset.splits.get(each)), "test")
        title, chunks, total = name or split, _from_dataset(dataset, split), dataset.splits.get(split)
        shown = f"{dataset.path.name}, split {split}"
    if title.startswith(".") or "/" in title:
        raise ConfigError(f"an evaluation cannot be called '{title}': its plots get a folder of that name")
    begun = time.perf_counter()
    tallies, figures, events = _judge(work, model, chunks, lambda done: progress and progress(done, total))
    result = Evaluation(title, tallies, events, time.perf_counter() - begun)
    _write(run, result, figures, shown, weights)
    return result


def recipe_of(run: Run, given: Any = None) -> tuple[Recipe, TrainConfig]:
    """The recipe (found again, unless it or its model is given) and the settings a run was made with."""
    document = run.config()
    place = str(document.data.get("recipe", ""))
    if given is None and not place:
        raise RecipeError(f"{run.path}: its recipe was typed in and cannot be found again; hand it over as recipe=")
    model = given if isinstance(given, nn.Module) else None
    found = find(place) if given is None or model is not None else type(resolve(given))
    own = {name: value for name, value in document.data.items() if name in found.Config.model_fields}
    config = validate(found.Config, Document(own, document.places, document.source))
    train = Document(document.data.get("train", {}), {}, document.source)
    made = found(config) if model is None else Columns(config, model=model)
    return made, validate(TrainConfig, train)


def _from_dataset(dataset: Dataset, split: str) -> Iterator[Table]:
    if not dataset.splits.get(split, 1):
        raise DataError(f"{dataset.path}: the split '{split}' is empty")
    for table in dataset.shards(split):
        for first in range(0, len(table), CHUNK):
            yield table.slice(first, first + CHUNK)


def _from_events(run: Run, recipe: Recipe, inputs: Sequence[str]) -> Iterator[Table]:
    saved = Manifest.load(run.dataset_file).transforms
    fitted: list[Transform] = [
        type(transform).model_validate(numbers) for transform, numbers in zip(recipe.transforms(), saved, strict=True)
    ]
    left = 0
    for location in locations(inputs):
        for samples in stages.samples(recipe, fitted, location):
            left += len(samples)
            yield samples
    if not left:
        raise stages.none_left(fitted)


def _judge(
    recipe: Recipe, model: nn.Module, chunks: Iterable[Table], progress: Callable[[int], Any]
) -> tuple[dict[str, Tally], dict[str, Figure], int]:
    device = best_device(0)
    model.to(device)
    total: dict[str, Tally] = {}
    figures: dict[str, Figure] = {}
    events = 0
    for samples in chunks:
        if not events:
            few = samples.slice(0, 3)
            outputs, _ = judge.forward(recipe, model, few, device)
            figures.update(recipe.display(few, outputs, recipe.reconstruct(few, outputs)))
        total = tally.add([total, judge.judge(recipe, model, samples, device)])
        events += len(samples)
        progress(events)
    return total, figures, events


def _write(run: Run, result: Evaluation, figures: dict[str, Figure], data: str, weights: str) -> None:
    """The figures first, then the record that says they are there."""
    plots: dict[str, Figure] = {}
    for name, item in result.tallies.items():
        drawn = item.figure(name.replace("_", " "))
        if drawn is not None:
            task = name.rpartition("/")[0]  # of a metric called `task/metric`: the report puts its figures together
            plots[name] = {**drawn, "layout": {**drawn["layout"], **({"meta": {"task": task}} if task else {})}}
    plots.update(figures)
    folder = run.plots / result.name
    shutil.rmtree(folder, ignore_errors=True)
    for place, (name, drawn) in enumerate(plots.items()):
        write_text(folder / f"{place:02d}-{name.replace('/', '_')}.json", json.dumps(drawn, allow_nan=False))
    metrics = {n: {"value": item.value, "error": item.error} for n, item in result.tallies.items() if item.scalar}
    with run.writer("evaluate") as writer:
        writer.write(
            "evaluation",
            name=result.name,
            data=data,
            events=result.events,
            metrics=metrics,
            seconds=result.seconds,
            checkpoint=weights,
        )
