"""`clew.predict`: the predictions of a run's model, as a table or a file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.core.files import atomic_path
from clew.core.trust import trust_file
from clew.data import writers
from clew.data.dataset import Dataset
from clew.data.table import EVENT_COLUMNS, Ragged, Table, concat, in_memory
from clew.errors import ConfigError, DataError, RecipeError
from clew.inference import exported_model
from clew.inference.ensemble import EnsembleTask
from clew.inference.evaluate import inference_batch_size
from clew.inference.model_runner import ModelOutput, ModelRunner, SamplePortion
from clew.inference.parallel_inference import InferenceTask, ProgressCallback, run_task
from clew.inference.sample_sources import DatasetSplit, EventsInMemory, RawEvents, SampleSource
from clew.jobs.rank_info import current_rank
from clew.jobs.worker_process import check_not_in_worker
from clew.recipe import Recipe, resolve
from clew.runs import Run
from clew.training.config import TrainConfig
from clew.training.model_recipe import is_model
from clew.training.run_recipe import recipe_of_run


def predict(
    run: Run | str | Path,
    events: Any = None,
    *,
    output: str | Path | None = None,
    data: str | Path | Dataset | None = None,
    split: str | None = None,
    input: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    raw: bool = False,
    weights: str = "best",
    recipe: Recipe | type[Recipe] | str | Callable[..., Any] | None = None,
    batch_size: int | None = None,
    workers: int = 1,
    replace: bool = False,
    current_code: bool = False,
    trust: bool = False,
    progress: ProgressCallback | None = None,
) -> Any:
    """Apply a run's model to events, and return one row per event, in their order.

    Rows of an ensemble hold the mean over its members and, as `NAME_spread`, the standard deviation. Rows are the same
    for any number of workers.

    Args:
        run: The run or its folder, or a file that `clew.export` wrote. A file needs `events`, `data` or `input`.
        events: Events in memory (an array, a dictionary of arrays, a data frame, an awkward array or a `clew.Table`)
            with the columns that `Recipe.read` returns; labels may be missing. The columns of an array are the
            features, in their order. Or files, like `input`.
        output: File to write: .h5 (a clew table), .parquet or .root. Default: return all rows.
        input: Files or globs of raw events to use instead of a dataset.
        columns: Columns of the samples to copy, such as labels. Default: those that identify an event (`run`, `lumi`,
            `event`, ...), if they exist.
        raw: Whether to add the outputs of the network that have one row per event.
        replace: Whether an existing `output` may be replaced.
        data, split, weights, recipe, batch_size, workers, current_code, trust, progress: See `clew.evaluate`.

    Returns:
        The path of `output`, or one row per event: a table, or the kind of `events`. An array gives an array, and with
        several outputs a dictionary of arrays. A data frame keeps its index.

    Raises:
        RunError, DataError, RecipeError, ConfigError: Something that is needed is missing or does not fit.
        WorkerError: A process died.

    Example:
        >>> import clew
        >>> import numpy as np
        >>> from torch import nn  # the model was typed in, so it is passed again
        >>> clew.predict("runs/sum", np.ones((3, 2)), recipe=nn.Linear(2, 1)).shape
        (3, 1)
    """
    check_not_in_worker("clew.predict")
    request = _Request(data, split, tuple(input), weights, recipe, batch_size, events, current_code, trust).with_files()
    path = None if output is None else _check_output(Path(output), replace=replace)
    is_file = exported_model.is_exported_model(run)
    make = (_task_of_file if is_file else _task_of_run)(run, request)
    kind = EnsembleRows if not is_file and _is_ensemble(run) else PredictionRows
    table = _write_rows(make, kind(request.copied_columns(columns), raw), path, workers, progress)
    return path or (table if request.events is None else in_memory.like(request.events, table))


def _write_rows(
    make: Make, rows: PredictionRows, path: Path | None, workers: int, progress: ProgressCallback | None
) -> Any:
    # this process writes the temporary file, not a worker, which may be stopped at any moment
    writes = path is not None and current_rank().rank == 0
    with atomic_path(path) if path is not None and writes else contextlib.nullcontext() as temporary:
        return run_task(make(partial(PredictionWork, rows, path, temporary)), workers=workers, progress=progress)


def _is_ensemble(run: Any) -> bool:
    opened = run if isinstance(run, Run) else Run.open(run)
    return bool(opened.config().data.get("train", {}).get("replicas"))


Make = Callable[[Callable[["RawEvents | None"], "PredictionWork"]], InferenceTask]
"""Makes the task from a function that makes the work."""


@dataclass(frozen=True)
class _Request:
    """What to predict, and how: the arguments of `predict` that runs and exported files share."""

    data: Any
    split: str | None
    input: tuple[str, ...]
    weights: str
    recipe: Any
    batch_size: int | None
    events: Any = None
    current_code: bool = False
    trust: bool = False

    def with_files(self) -> _Request:
        """Return the request with `events` as `input` if they are names of files.

        Raises:
            ConfigError: Events are passed in more than one way.
        """
        request, events = self, self.events
        if isinstance(events, (str, Path)):
            events = [events]
        if isinstance(events, list) and events and isinstance(events[0], (str, Path)):
            request = dataclasses.replace(self, input=tuple(map(str, events)), events=None)
        elif events is not None and (self.data is not None or self.split is not None or self.input):
            raise ConfigError("pass events, a dataset (data, split) or files (input): only one of them")
        return request

    def copied_columns(self, columns: Sequence[str] | None) -> tuple[str, ...] | None:
        """Return the columns of the samples to copy; None for those that identify an event, which no array has."""
        if columns is None:
            return () if in_memory.is_plain_array(self.events) else None
        return tuple(columns)

    def samples(self, source: RawEvents | None, dataset: Any) -> SampleSource:
        """Return the samples to predict. `source` prepares raw events; None for a dataset."""
        if self.events is None:
            return source or DatasetSplit.of(self.data or dataset, self.split)
        assert source is not None
        features = list(source.recipe.passthrough_columns().values())
        names = features[0] if len(features) == 1 else ()
        table = in_memory.to_table(self.events, names, source.recipe.event_columns())
        if not len(table):
            raise DataError("no events to predict: the data is empty")
        return EventsInMemory(source, table)


def _task_of_run(run: Any, request: _Request) -> Make:
    run = run if isinstance(run, Run) else Run.open(run)
    recipe, config = recipe_of_run(run, request.recipe, current_code=request.current_code, trust=request.trust)
    is_raw = bool(request.input) or request.events is not None
    events = RawEvents(run, recipe, request.input, unlabelled=True) if is_raw else None
    if events is not None and request.input and not current_rank().rank:
        events.warn()
    samples = request.samples(events, config.dataset)
    size = inference_batch_size(request.batch_size, config, recipe)
    kind = EnsembleTask if config.replicas is not None else InferenceTask
    return lambda work: kind(run, recipe, request.weights, samples, size, work(events), config.device)


def _task_of_file(file: Any, request: _Request) -> Make:
    """Make the task of an exported model."""
    path = Path(file).absolute()
    if request.trust:
        trust_file(path)
    chosen_recipe = request.recipe
    if not isinstance(chosen_recipe, (str, Path)) and is_model(chosen_recipe):
        chosen_recipe = None  # the file holds its model
    facts, run = exported_model.read_trusted_facts(path, chosen_recipe is None), exported_model.meeting_run(path)
    is_raw = bool(request.input) or request.events is not None
    if request.data is None and not is_raw:
        raise ConfigError(f"{file}: give the events to predict: a dataset (--dataset), or raw events (--input)")
    recipe = exported_model.recipe_from_facts(facts) if chosen_recipe is None else resolve(chosen_recipe)
    events = None
    if is_raw:
        saved = facts.transforms, facts.input_items
        events = exported_model.ExportedModelEvents(run, recipe, request.input, True, *saved)
    samples = request.samples(events, request.data)
    size = inference_batch_size(request.batch_size, _default_training(), recipe)
    size = max(size, facts.fast_batch_size) if request.batch_size is None else size
    return lambda work: exported_model.ExportedModelTask(
        run, recipe, request.weights, samples, size, work(events), file=path
    )


@functools.cache
def _default_training() -> TrainConfig:
    """The defaults. Their check reads the metadata of all installed packages, which takes longer than a prediction."""
    return TrainConfig()


def _check_output(path: Path, *, replace: bool) -> Path:
    """Return a path that may be written.

    Raises:
        ConfigError: There is no writer for such files, or the file exists.
    """
    writers.find(path)
    if path.exists() and not replace:
        raise ConfigError(f"{path} exists already; name another --output, or use --replace")
    return path


@dataclass(frozen=True)
class PredictionRows:
    """Which columns a row of predictions has."""

    columns: tuple[str, ...] | None = None
    raw: bool = False

    def of(self, recipe: Recipe, result: ModelOutput) -> Table:
        """Return the rows of some samples.

        Raises:
            RecipeError: The recipe did not return one row per event.
            DataError: The samples have no such column, or there is no column to write.
        """
        samples, outputs = result.samples, result.outputs
        objects = recipe.reconstruct(samples, outputs)
        if len(objects) != len(samples) and len(list(objects)):
            raise RecipeError(
                f"{type(recipe).__name__}.reconstruct returned {len(objects)} rows for {len(samples)} events"
            )
        columns = self._sample_columns(samples, objects)
        if not (columns or list(objects) or self.raw):
            raise DataError(
                f"nothing to write: {type(recipe).__name__} reconstructs nothing, and no output has one row per event"
            )
        rows = samples.pick(*columns).join(objects, units=objects.units, index_of=objects.index_of)
        return rows.join(_raw_outputs(outputs, len(samples), objects)) if self.raw else rows

    def _sample_columns(self, samples: Table, objects: Table) -> list[str]:
        if self.columns is None:
            return [name for name in EVENT_COLUMNS if name in samples and name not in objects]
        for name in self.columns:
            if name in objects:
                raise ConfigError(
                    f"column '{name}' is reconstructed; the column of the samples with the same name cannot be copied"
                )
        return list(self.columns)


def _raw_outputs(outputs: Mapping[str, NDArray[Any]], events: int, objects: Table) -> dict[str, NDArray[Any]]:
    rows = {name: value for name, value in outputs.items() if value.ndim and len(value) == events}
    if not rows:
        shapes = ", ".join(f"{name} {value.shape}" for name, value in outputs.items())
        raise DataError(f"no raw output has one row per event: {shapes} for {events} events")
    return {name: value for name, value in rows.items() if name not in objects}


@dataclass(frozen=True)
class EnsembleRows(PredictionRows):
    """Rows of an ensemble: the mean of every number over the members, and as `NAME_spread` the standard deviation."""

    def of(self, recipe: Recipe, result: ModelOutput) -> Table:
        outputs = next(iter(result.outputs.values()))
        members = [
            super(EnsembleRows, self).of(
                recipe, result._replace(outputs={n: v[:, m] for n, v in result.outputs.items()})
            )
            for m in range(outputs.shape[1])
        ]
        rows: dict[str, Any] = {}
        for name in members[0]:
            columns = [table[name] for table in members]
            if name in result.samples and self._is_sample_column(name):
                rows[name] = columns[0]
            elif any(isinstance(column, Ragged) for column in columns):
                reason = "has several values per event, which cannot be averaged over members"
                raise DataError(f"'{name}' {reason}; predict with one member of the ensemble")
            else:
                values = np.stack([np.asarray(column, dtype=np.float64) for column in columns])
                rows[name], rows[f"{name}_spread"] = values.mean(0), values.std(0, ddof=min(1, len(values) - 1))
        return Table(rows)

    def _is_sample_column(self, name: str) -> bool:
        """Whether a column was copied from the samples."""
        return name in (EVENT_COLUMNS if self.columns is None else self.columns)


@dataclass(frozen=True)
class PredictionWork:
    """Writes rows to a file, or collects them in a table."""

    rows: PredictionRows
    path: Path | None
    temporary: Path | None
    events: RawEvents | None
    losses: bool = False

    def one(self, engine: ModelRunner, portion: SamplePortion) -> Table:
        return concat([self.rows.of(engine.recipe, result) for result in engine.run_joined(portion)])

    def all(self, results: Iterator[Table]) -> Table | None:
        if self.path is None or self.temporary is None:
            tables = list(results)
            if not tables:
                raise self._no_events_error()
            return concat(tables)
        empty = True
        with writers.write_in_background(writers.find(self.path)(self.temporary)) as append:
            for table in results:
                append(table)
                empty = False
        if empty:
            raise self._no_events_error()
        return None

    def _no_events_error(self) -> DataError:
        assert self.events is not None  # a split always has samples
        return self.events.no_events_error()
