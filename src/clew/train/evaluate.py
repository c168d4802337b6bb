"""`clew.evaluate`: how good a run's model is, on a split of a dataset or on raw events."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from clew import tally
from clew.config import Document, validate
from clew.dataset import Dataset, Manifest
from clew.errors import DataError
from clew.figure import Figure
from clew.files import write_text
from clew.ledger import Run
from clew.prepare import stages
from clew.prepare.inputs import find as find_inputs
from clew.recipe import Recipe, find
from clew.table import Table
from clew.tally import Tally
from clew.train import checkpoint, judge
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
    split: str = "test",
    input: Sequence[str] = (),
    name: str | None = None,
    weights: str = "best",
) -> Evaluation:
    """Judge a run's model and write the figures into the run's folder.

    On `split` of a dataset (default: the one it was trained on), or on raw events (`input`: files or globs), which
    go through the run's own recipe and fitted transforms. `name` is what the report calls it.

    Raises:
        RunError, DataError, RecipeError: something needed is missing or does not fit.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    recipe, config = recipe_of(run)
    model = recipe.model()
    checkpoint.load(model, run.checkpoint(weights))
    if input:
        title, chunks = name or "events", _from_events(run, recipe, input)
        shown = ", ".join(input)
    else:
        dataset = data if isinstance(data, Dataset) else Dataset(data or config.dataset)
        title, chunks, shown = name or split, _from_dataset(dataset, split), f"{dataset.path.name}, split {split}"
    begun = time.perf_counter()
    tallies, figures, events = _judge(recipe, model, chunks)
    result = Evaluation(title, tallies, events, time.perf_counter() - begun)
    _write(run, result, figures, shown, weights)
    return result


def recipe_of(run: Run) -> tuple[Recipe, TrainConfig]:
    """The recipe and the settings a run was made with."""
    document = run.config()
    found = find(str(document.data.get("recipe", "")))
    own = {name: value for name, value in document.data.items() if name in found.Config.model_fields}
    config = validate(found.Config, Document(own, document.places, document.source))
    train = Document(document.data.get("train", {}), {}, document.source)
    return found(config), validate(TrainConfig, train)


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
    for source in find_inputs(inputs):
        yield from stages.samples(recipe, fitted, source.path)


def _judge(
    recipe: Recipe, model: nn.Module, chunks: Iterable[Table]
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
    return total, figures, events


def _write(run: Run, result: Evaluation, figures: dict[str, Figure], data: str, weights: str) -> None:
    """The figures first, then the record that says they are there."""
    plots: dict[str, Figure] = {}
    for name, item in result.tallies.items():
        drawn = item.figure(name.replace("_", " "))
        if drawn is not None:
            plots[name] = drawn
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
