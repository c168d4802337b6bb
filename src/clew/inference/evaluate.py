"""`clew.evaluate`: how good a run's model is, on a split of a dataset or on raw events."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clew.core.files import write_text
from clew.data.dataset import Dataset
from clew.errors import ConfigError
from clew.figure import Figure
from clew.inference.model_runner import ModelRunner, SamplePortion
from clew.inference.parallel_inference import InferenceTask, ProgressCallback, run_task
from clew.inference.sample_sources import DatasetSplit, RawEvents
from clew.jobs.rank_info import current_rank as launched
from clew.jobs.worker_process import check_not_in_worker
from clew.metrics import Metric, add_metrics
from clew.recipe import Recipe
from clew.runs import Run
from clew.storage import models
from clew.training import validation
from clew.training.config import TrainConfig
from clew.training.run_recipe import recipe_of_run


@dataclass(frozen=True)
class Evaluation:
    """What came out: tallies with value, error and figure, the number of samples, and the seconds it took."""

    name: str
    tallies: dict[str, Metric]
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
    batch_size: int | None = None,
    workers: int = 1,
    progress: ProgressCallback | None = None,
) -> Evaluation:
    """Judge a run's model and write the figures into the run's folder.

    On `split` (default: `test`, or `val` where there is none) of a dataset (default: that of the run), or on raw events
    (`input`: files or globs), which go through the run's own recipe and fitted transforms. `name` is what the report
    calls it. `recipe` is needed only for one (or for a model) that was typed into a notebook and cannot be found again.
    `batch_size` defaults to the run's own, but at least `Recipe.inference_batch_size`; `workers` are processes here,
    unless a launcher started some: the figures do not depend on their number, nor on the batch size beyond rounding.
    `progress` is called with the number of events done and, where it is known, of all.

    Raises:
        RunError, DataError, RecipeError, ConfigError: something needed is missing or does not fit.
        WorkerError: a process died.
    """
    check_not_in_worker("clew.evaluate")
    run = run if isinstance(run, Run) else models.open_run(run)
    work, config = recipe_of_run(run, recipe)
    if config.replicas is not None:
        told = f"an ensemble of {config.replicas}; evaluate a member: {run.replicas_folder / 'replica-000'}"
        raise ConfigError(f"{run.path} is {told}, or predict with all of them")
    samples = RawEvents(run, work, tuple(input)) if input else DatasetSplit.of(data or config.dataset, split)
    title = name or (samples.split if isinstance(samples, DatasetSplit) else "events")
    if title.startswith(".") or "/" in title:
        raise ConfigError(f"an evaluation cannot be called '{title}': its plots get a folder of that name")
    begun = time.perf_counter()
    task = InferenceTask(run, work, weights, samples, inference_batch_size(batch_size, config, work), EvaluationWork())
    judged: _Judged = run_task(task, workers=workers, progress=progress)
    if not judged.events:
        assert isinstance(samples, RawEvents)  # a split is known to have samples
        raise samples.none()
    result = Evaluation(title, judged.total, judged.events, time.perf_counter() - begun)
    if launched().rank == 0:
        _write(run, result, judged.figures, samples.title, weights)
    return result


def inference_batch_size(given: int | None, config: TrainConfig, recipe: Recipe) -> int:
    """Samples a batch: those asked for, or the run's own but at least `Recipe.inference_batch_size`.

    Raises:
        ConfigError: less than one is asked for.
    """
    if given is not None and given < 1:
        raise ConfigError(f"batch size {given}: at least 1 is needed")
    return given or max(config.size, recipe.inference_batch_size)


@dataclass
class _Judged:
    """Tallies, and plots of the first few events, of all that was judged so far."""

    events: int = 0
    total: dict[str, Metric] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)


@dataclass
class EvaluationWork:
    """Tallies of every batch, added in the order of the events: the same bits for any number of ranks."""

    losses: bool = True
    drawn: bool = False
    """Whether this process has plotted its first events; those of the first rank that has any are kept."""

    def one(
        self, engine: ModelRunner, portion: SamplePortion
    ) -> tuple[int, list[dict[str, Metric]], dict[str, Figure]]:
        recipe, tallies, figures = engine.recipe, [], dict[str, Figure]()
        for answer in engine.answers(portion):
            samples, outputs = answer.samples, answer.outputs
            tallies.append({**answer.losses, **recipe.metrics(samples, outputs, recipe.reconstruct(samples, outputs))})
        if not self.drawn:
            self.drawn, few = True, portion.samples.slice(0, 3)
            outputs, _ = validation.forward(recipe, engine.model, few, engine.device)
            figures = dict(recipe.display(few, outputs, recipe.reconstruct(few, outputs)))
        return len(portion.samples), tallies, figures

    def all(self, results: Iterator[tuple[int, list[dict[str, Metric]], dict[str, Figure]]]) -> _Judged:
        found = _Judged()
        for number, (events, tallies, figures) in enumerate(results):
            found.events += events
            found.total = add_metrics([found.total, *tallies])
            found.figures = figures if not number else found.figures
        return found


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
