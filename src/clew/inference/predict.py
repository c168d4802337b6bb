"""`clew.predict`: what a run's model says of events, as a table or a file of one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.core.files import atomic
from clew.data import writers
from clew.data.dataset import Dataset
from clew.data.table import Ragged, Table, concat
from clew.errors import ConfigError, DataError, RecipeError
from clew.inference import exported_model
from clew.inference.ensemble import EnsembleTask
from clew.inference.evaluate import inference_batch_size
from clew.inference.model_runner import ModelOutput, ModelRunner, SamplePortion
from clew.inference.parallel_inference import InferenceTask, ProgressCallback, run_task
from clew.inference.sample_sources import DatasetSplit, RawEvents
from clew.jobs.rank_info import current_rank as launched
from clew.jobs.worker_process import check_not_in_worker
from clew.recipe import Recipe, resolve
from clew.runs import Run
from clew.training.config import TrainConfig
from clew.training.run_recipe import recipe_of_run

EVENT_COLUMNS = ("run", "run_number", "lumi", "event", "event_number", "event_id")
"""Columns of samples that go along unless others are chosen, where they are there."""


def predict(
    run: Run | str | Path,
    *,
    output: str | Path | None = None,
    data: str | Path | Dataset | None = None,
    split: str | None = None,
    input: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    raw: bool = False,
    weights: str = "best",
    recipe: Any = None,
    batch_size: int | None = None,
    workers: int = 1,
    replace: bool = False,
    progress: ProgressCallback | None = None,
) -> Path | Table:
    """What a run's model says of events, one row an event, in their order. `run` may also be a file that `clew.export`
    wrote (.onnx, .pt2, .keras); it needs `data` or `input`.

    A row has `columns` of the samples (default: those of `EVENT_COLUMNS` that are there), the objects that the recipe
    reconstructs and, with `raw`, the network's outputs where they have one row an event. It is the same for any number
    of ranks; another `batch_size` may round differently.

    `output` is a file ending in .h5 (a clew table), .parquet or .root, and is returned; an existing one is kept unless
    `replace`. It is written under another name first, so there is never half of it; memory holds a few pieces of it.
    Without `output` all rows are returned as a table.

    `data`, `split`, `input`, `weights`, `recipe` and `progress` are those of `clew.evaluate`. `batch_size` defaults to
    the run's own, but at least 256; `workers` are processes of this machine, unless a launcher started some.

    Raises:
        RunError, DataError, RecipeError, ConfigError: something needed is missing or does not fit.
        WorkerError: a process died.
    """
    check_not_in_worker("clew.predict")
    path = None if output is None else _free(Path(output), replace=replace)
    task = _of_file if exported_model.is_exported_model(run) else _of_run
    make = task(run, data=data, split=split, input=tuple(input), weights=weights, recipe=recipe, size=batch_size)
    chosen = None if columns is None else tuple(columns)
    rows = EnsembleRows(chosen, raw) if _is_ensemble(run) else PredictionRows(chosen, raw)
    # one process owns the unfinished file: not a worker, which may be stopped at any moment
    owned = path is not None and launched().rank == 0
    with atomic(path) if path is not None and owned else contextlib.nullcontext() as temporary:
        found = run_task(make(partial(PredictionWork, rows, path, temporary)), workers=workers, progress=progress)
    return path or found


def _is_ensemble(run: Any) -> bool:
    if exported_model.is_exported_model(run):
        return False
    opened = run if isinstance(run, Run) else Run.open(run)
    return bool(opened.config().data.get("train", {}).get("replicas"))


Make = Callable[[Callable[["RawEvents | None"], "PredictionWork"]], InferenceTask]
"""Gives the task, once it is known what makes the work."""


def _of_run(
    run: Any, *, data: Any, split: str | None, input: tuple[str, ...], weights: str, recipe: Any, size: int | None
) -> Make:
    run = run if isinstance(run, Run) else Run.open(run)
    made, config = recipe_of_run(run, recipe)
    events = RawEvents(run, made, input, unlabelled=True) if input else None
    samples = events or DatasetSplit.of(data or config.dataset, split)
    chosen = inference_batch_size(size, config, made)
    kind = EnsembleTask if config.replicas is not None else InferenceTask
    return lambda work: kind(run, made, weights, samples, chosen, work(events))


def _of_file(
    file: Any, *, data: Any, split: str | None, input: tuple[str, ...], weights: str, recipe: Any, size: int | None
) -> Make:
    """Of an exported model."""
    path = Path(file).absolute()
    facts, place = exported_model.read_facts(path), exported_model.meeting_run(path)
    if data is None and not input:
        raise ConfigError(f"{file}: say of which events: a dataset (--data), or raw ones (--input)")
    made = exported_model.recipe_from_facts(facts) if recipe is None else resolve(recipe)
    events = exported_model.ExportedModelEvents(place, made, input, True, facts.transforms) if input else None
    samples = events or DatasetSplit.of(data, split)
    chosen = inference_batch_size(size, TrainConfig(), made)
    return lambda work: exported_model.ExportedModelTask(place, made, weights, samples, chosen, work(events), path)


def _free(path: Path, *, replace: bool) -> Path:
    """A path that may be written.

    Raises:
        ConfigError: nobody writes such files, or it is taken.
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

    def of(self, recipe: Recipe, answer: ModelOutput) -> Table:
        """The rows of some samples.

        Raises:
            RecipeError: the recipe did not give one row an event.
            DataError: no such column of the samples, or none at all to write.
        """
        samples, outputs = answer.samples, answer.outputs
        objects = recipe.reconstruct(samples, outputs)
        if len(objects) != len(samples) and len(list(objects)):
            raise RecipeError(f"{type(recipe).__name__}.reconstruct gave {len(objects)} rows for {len(samples)} events")
        chosen = self._chosen(samples, objects)
        if not (chosen or list(objects) or self.raw):
            raise DataError(
                f"nothing to write: {type(recipe).__name__} reconstructs nothing, and no output has one row an event"
            )
        found = samples.pick(*chosen).join(objects, units=objects.units, index_of=objects.index_of)
        return found.join(_raw(outputs, len(samples), objects)) if self.raw else found

    def _chosen(self, samples: Table, objects: Table) -> list[str]:
        if self.columns is None:
            return [name for name in EVENT_COLUMNS if name in samples and name not in objects]
        for name in self.columns:
            if name in objects:
                raise ConfigError(f"column '{name}' is reconstructed; the samples' own cannot stand beside it")
        return list(self.columns)


def _raw(outputs: Mapping[str, NDArray[Any]], events: int, objects: Table) -> dict[str, NDArray[Any]]:
    found = {name: value for name, value in outputs.items() if value.ndim and len(value) == events}
    if not found:
        told = ", ".join(f"{name} {value.shape}" for name, value in outputs.items())
        raise DataError(f"no raw output has one row an event: {told} for {events} events")
    return {name: value for name, value in found.items() if name not in objects}


@dataclass(frozen=True)
class EnsembleRows(PredictionRows):
    """Of an ensemble: of every number the mean over members, and as `NAME_spread` the standard deviation."""

    def of(self, recipe: Recipe, answer: ModelOutput) -> Table:
        outputs = next(iter(answer.outputs.values()))
        each = [
            super(EnsembleRows, self).of(
                recipe, answer._replace(outputs={n: v[:, m] for n, v in answer.outputs.items()})
            )
            for m in range(outputs.shape[1])
        ]
        found: dict[str, Any] = {}
        for name in each[0]:
            columns = [table[name] for table in each]
            if name in answer.samples and self._own(name):
                found[name] = columns[0]
            elif any(isinstance(column, Ragged) for column in columns):
                told = "has several values an event, which cannot be averaged over members"
                raise DataError(f"'{name}' {told}; predict with one member of the ensemble")
            else:
                values = np.stack([np.asarray(column, dtype=np.float64) for column in columns])
                found[name], found[f"{name}_spread"] = values.mean(0), values.std(0, ddof=min(1, len(values) - 1))
        return Table(found)

    def _own(self, name: str) -> bool:
        """Whether a column is the samples' own."""
        return name in (EVENT_COLUMNS if self.columns is None else self.columns)


@dataclass(frozen=True)
class PredictionWork:
    """Rows to a file, or to a table."""

    rows: PredictionRows
    path: Path | None
    temporary: Path | None
    events: RawEvents | None
    losses: bool = False

    def one(self, engine: ModelRunner, portion: SamplePortion) -> Table:
        return concat([self.rows.of(engine.recipe, answer) for answer in engine.together(portion)])

    def all(self, results: Iterator[Table]) -> Table | None:
        if self.path is None or self.temporary is None:
            found = list(results)
            if not found:
                raise self._none()
            return concat(found)
        empty = True
        with writers.behind(writers.find(self.path)(self.temporary)) as append:
            for table in results:
                append(table)
                empty = False
        if empty:
            raise self._none()
        return None

    def _none(self) -> DataError:
        assert self.events is not None  # a split is known to have samples
        return self.events.none()
