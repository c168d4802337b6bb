"""`clew.evaluate`: metrics of a run's model on a split of a dataset or on raw events."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew.core.files import write_text
from clew.core.html_table import html_table, shorten
from clew.data.dataset import Dataset
from clew.data.table import Table
from clew.errors import ConfigError, list_names
from clew.figure import Figure
from clew.inference.batch_times import TIMED_SAMPLES, BatchTimes, measure_batches
from clew.inference.compared_samples import ComparedSamples
from clew.inference.feature_importance import importance_figures
from clew.inference.largest_errors import ErrorExample, LargestErrors, with_task
from clew.inference.model_runner import ModelRunner, SamplePortion
from clew.inference.parallel_inference import Deferred, InferenceTask, ProgressCallback, run_task
from clew.inference.sample_sources import DatasetSplit, RawEvents, SampleSource
from clew.jobs.rank_info import current_rank
from clew.jobs.worker_process import check_not_in_worker
from clew.metrics import Metric, add_metrics
from clew.recipe import Recipe
from clew.runs import Run
from clew.runs.report import write_report
from clew.runs.scores import Score
from clew.storage import models
from clew.training import validation
from clew.training.config import TrainConfig
from clew.training.metric_workers import MetricTask
from clew.training.run_recipe import recipe_of_run


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation."""

    name: str
    metrics: dict[str, Metric]
    """Metrics by name, each with its value, its error and its plot."""
    events: int
    """Number of samples."""
    seconds: float
    """Duration."""

    def __repr__(self) -> str:
        values = [" ".join(filter(None, row)) for row in self._values()]
        return f"Evaluation({self.name}: {self.events:,} events, {shorten(values)})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        title = f"Evaluation {self.name}: {self.events:,} events in {self.seconds:.1f} s"
        return html_table(title, self._values(), header=("metric", "value", "error"))

    def draw(self, *names: str, style: str = "") -> Any:
        """Draw the plots of metrics, such as ROC curves and confusion matrices, as one matplotlib figure.

        Args:
            *names: Names of metrics. Default: all that have a plot.
            style: A style of mplhep: CMS, ATLAS, LHCb2, ALICE. Default: that of matplotlib.

        Raises:
            ConfigError: A metric does not exist or has no plot; matplotlib or mplhep is not installed.
        """
        from clew.runs.drawing import draw_figures

        figures = {name: metric.figure(name) for name, metric in self.metrics.items()}
        known = {name: figure for name, figure in figures.items() if figure is not None}
        for name in names:
            if name not in known:
                raise ConfigError(f"there is no plot of '{name}'; there are {list_names(known, name)}")
        return draw_figures([known[name] for name in names or known], style=style)

    def _values(self) -> list[tuple[str, str, str]]:
        """Name, value and error of every metric that is a number."""
        scores = {name: Score.of_metric(metric) for name, metric in self.metrics.items() if metric.scalar}
        return [(name, score.value_text, score.error_text) for name, score in scores.items()]


def evaluate(
    run: Run | str | Path,
    *,
    data: str | Path | Dataset | None = None,
    split: str | None = None,
    input: Sequence[str] = (),
    name: str | None = None,
    weights: str = "best",
    recipe: Recipe | type[Recipe] | str | Callable[..., Any] | None = None,
    batch_size: int | None = None,
    workers: int = 1,
    current_code: bool = False,
    trust: bool = False,
    progress: ProgressCallback | None = None,
) -> Evaluation:
    """Evaluate a run's model, and write metrics, plots and `report.html` into the run's folder.

    The result does not depend on the number of workers, nor on the batch size beyond rounding.

    Args:
        run: The run or its folder.
        data: A dataset or its folder. Default: the dataset of the run.
        split: The split to evaluate. Default: `test`, or `val` if there is no `test`.
        input: Files or globs of raw events to evaluate instead of a dataset. They pass through the recipe and the
            fitted transforms of the run.
        name: Name of the evaluation in the report. Default: the name of the split; with `current_code`, that name with
            `-current-code`, so that the figures of the saved code stay.
        weights: Which weights to use: "best" or "last".
        recipe: The recipe or the model, if it was typed into a notebook and cannot be loaded again.
        batch_size: Samples per batch. Default: that of the run, but at least `Recipe.inference_batch_size`.
        workers: Number of processes. Under a launcher, its processes are used.
        current_code: Whether to use today's code of the recipe instead of the code that the run saved.
        trust: Whether to execute code of a run that came from elsewhere, now and later.
        progress: Called with the number of events done and, if known, of all events.

    Returns:
        The metrics, the number of samples, and the duration.

    Raises:
        RunError, DataError, RecipeError, ConfigError: Something that is needed is missing or does not fit.
        WorkerError: A process died.

    Example:
        >>> import clew
        >>> from torch import nn  # the model was typed in, so it is passed again
        >>> evaluation = clew.evaluate("runs/sum", split="val", recipe=nn.Linear(2, 1))
        >>> evaluation.events, sorted(evaluation.metrics)
        (39, ['loss', 'mae'])
    """
    check_not_in_worker("clew.evaluate")
    run = run if isinstance(run, Run) else models.open_run(run)
    loaded, config = recipe_of_run(run, recipe, current_code=current_code, trust=trust)
    if config.replicas is not None:
        raise _ensemble_error(run, config.replicas)
    samples = RawEvents(run, loaded, tuple(input)) if input else DatasetSplit.of(data or config.dataset, split)
    if isinstance(samples, RawEvents) and not current_rank().rank:
        samples.warn()
    work, size = EvaluationWork(recipe=loaded), inference_batch_size(batch_size, config, loaded)
    task = InferenceTask(run, loaded, weights, samples, size, work, config.device, config.metric_workers)
    return _evaluate(task, _evaluation_name(name, samples, current_code), workers, progress)


def _ensemble_error(run: Run, replicas: int) -> ConfigError:
    member = run.replicas_folder / "replica-000"
    return ConfigError(
        f"{run.path} is an ensemble of {replicas}; evaluate a member: {member}, or predict with all of them"
    )


def _evaluation_name(name: str | None, samples: SampleSource, current_code: bool) -> str:
    source = samples.split if isinstance(samples, DatasetSplit) else "events"
    chosen = name or (f"{source}-current-code" if current_code else source)
    if chosen.startswith(".") or "/" in chosen:
        raise ConfigError(f"an evaluation cannot be named '{chosen}': its plots get a folder of that name")
    return chosen


def _evaluate(task: InferenceTask, name: str, workers: int, progress: ProgressCallback | None) -> Evaluation:
    start = time.perf_counter()
    total: _Total = run_task(task, workers=workers, progress=progress)
    if not total.events:
        assert isinstance(task.samples, RawEvents)  # a split always has samples
        raise task.samples.no_events_error()
    times = BatchTimes()
    if current_rank().rank == 0 and total.first is not None:
        times = measure_batches(task, total.first)
    metrics = {**total.metrics, **times.metrics()}
    result = Evaluation(name, metrics, total.events, time.perf_counter() - start)
    if current_rank().rank == 0:
        figures = {**total.figures, **times.figures(task.recipe), **total.errors.figures(task.recipe)}
        figures |= importance_figures(task)
        _write(task.run, result, figures, task.samples.title, task.weights)
        write_report(task.run)
    return result


def inference_batch_size(batch_size: int | None, config: TrainConfig, recipe: Recipe) -> int:
    """Return the samples per batch: those asked for, or those of the run but at least `Recipe.inference_batch_size`.

    Raises:
        ConfigError: The size asked for is less than 1.
    """
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"batch size {batch_size}: it must be at least 1")
    return batch_size or max(config.size, recipe.inference_batch_size)


@dataclass
class _Total:
    """Metrics of everything evaluated so far, plots of the first events, and the events with the largest losses."""

    events: int = 0
    metrics: dict[str, Metric] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    errors: LargestErrors = field(default_factory=LargestErrors)
    first: Table | None = None
    """The first samples, if the recipe has batches to be timed."""


class _PortionResult(NamedTuple):
    """The result of one portion of the samples."""

    events: int
    metrics: list[dict[str, Metric]]
    figures: dict[str, Figure]
    errors: list[ErrorExample]
    compared: ComparedSamples
    """Samples for the comparison as a whole."""


@dataclass
class EvaluationWork:
    """Adds the metrics of all batches in the order of the events: the same bits for any number of ranks."""

    losses: bool = True
    drawn: bool = False
    """Whether this process has plotted its first events. Only the plots of the first portion are used."""
    errors: LargestErrors = field(default_factory=LargestErrors)
    """The largest losses that this process has seen."""
    recipe: Recipe | None = None
    """The recipe, if its comparison of all samples is part of the evaluation."""

    def one(self, engine: ModelRunner, portion: SamplePortion) -> Deferred:
        recipe, figures = engine.recipe, dict[str, Figure]()
        metrics: list[tuple[dict[str, Metric], MetricTask]] = []
        losses: list[NDArray[Any]] = []
        compared = ComparedSamples(self.recipe.comparison_size() if self.recipe else 0)
        for result in engine.run(portion):
            samples, outputs = result.samples, result.outputs
            metrics.append((result.losses.metrics, engine.metric_workers.submit(samples, outputs, evaluation=True)))
            compared.add_outputs(recipe, samples, outputs)
            losses += [] if result.losses.per_event is None else [result.losses.per_event]
        if not self.drawn:
            self.drawn, first = True, portion.samples.slice(0, 3)
            outputs, _ = validation.forward(recipe, engine.model, first, engine.device)
            figures = dict(recipe.display(first, outputs, recipe.reconstruct(first, outputs)))
        examples = self.errors.examples(engine, portion.samples, np.concatenate(losses)) if losses else []
        count = len(portion.samples)
        return Deferred(
            lambda: _PortionResult(count, [m | task.result() for m, task in metrics], figures, examples, compared)
        )

    def all(self, results: Iterator[_PortionResult]) -> _Total:
        total, compared = _Total(), ComparedSamples(self.recipe.comparison_size() if self.recipe else 0)
        for number, (events, metrics, figures, examples, some) in enumerate(results):
            total.events += events
            total.metrics = add_metrics([total.metrics, *metrics])
            total.figures = figures if not number else total.figures
            total.errors.add(examples)
            compared.add(some)
        if self.recipe is not None and compared:
            comparison = compared.compare(self.recipe)
            total.metrics |= comparison.metrics
            total.figures |= comparison.figures
            total.first = compared.first(TIMED_SAMPLES) if self.recipe.timed_batches else None
        return total


def _write(run: Run, result: Evaluation, figures: dict[str, Figure], data: str, weights: str) -> None:
    """Write the plots, then the record that refers to them."""
    plots: dict[str, Figure] = {}
    for name, item in result.metrics.items():
        for ending, figure in item.figures(name.replace("_", " ")).items():
            task = name.rpartition("/")[0]  # metrics named `task/metric`: the report groups their plots
            plots[f"{name}_{ending}" if ending else name] = with_task(figure, task)
    plots.update(figures)
    folder = run.plots / result.name
    shutil.rmtree(folder, ignore_errors=True)
    for number, (name, figure) in enumerate(plots.items()):
        write_text(folder / f"{number:02d}-{name.replace('/', '_')}.json", json.dumps(figure, allow_nan=False))
    metrics = {name: Score.of_metric(item).entry() for name, item in result.metrics.items() if item.scalar}
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
