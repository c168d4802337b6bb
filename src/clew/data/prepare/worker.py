"""What a worker does: one piece of a file through all stages, or one shard. Small in, small out; data goes by disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
from numpy.typing import NDArray

from clew.core.files import atomic, sha256
from clew.data.dataset.manifest import Shard
from clew.data.prepare import stages
from clew.data.prepare.content_keys import Parts, key_of
from clew.data.prepare.inputs import Source
from clew.data.prepare.stage_cache import Cache
from clew.data.table import Ragged, Table, hdf5
from clew.data.transforms import Fitted, Transform
from clew.data.transforms.base import apply
from clew.errors import DataError
from clew.recipe import Recipe
from clew.storage import mask_secrets, split_inside

Lengths = dict[str, NDArray[np.int32]]


@dataclass(frozen=True)
class Job:
    """What all pieces of a preparation have in common."""

    recipe: Recipe
    transforms: tuple[Transform, ...]
    parts: dict[str, Parts]
    cache: Cache
    keep: frozenset[str]
    split_by: str


@dataclass(frozen=True)
class Unit:
    """One piece of one file; `piece` is None for a file whose reader can only go through it from the beginning."""

    source: Source
    piece: int | None
    where: str
    """For people: the file and the range."""
    bytes: int
    """Roughly its share of the file."""


@dataclass(frozen=True)
class Part:
    """A finished piece: where its samples lie, and what the driver needs to know of them."""

    key: str
    read: int
    """Events before the transforms, which may select."""
    events: int
    lengths: Lengths
    """Items an event, by set of items."""
    keys: NDArray[np.int64] | None
    """The values of the column that splits go by, if they go by one."""
    statistics: dict[str, dict[str, float]]


@dataclass(frozen=True)
class ShardPlan:
    """A shard to write: which events of which parts, in order."""

    path: Path
    pieces: tuple[tuple[str, NDArray[np.int64]], ...]
    items: dict[str, int]
    events: int


def stage_keys(parts: dict[str, Parts], source: Source, piece: int) -> dict[str, str]:
    """The key of every stage of a piece; each holds the one before it."""
    read = key_of([source.sha256, piece, parts["read"]])
    transforms = key_of([read, parts["transforms"]])
    return {"read": read, "transforms": transforms, "prepare": key_of([transforms, parts["prepare"]])}


def run_unit(job: Job, unit: Unit) -> list[Part]:
    """Take a piece through all stages, using what is cached and caching what is not.

    Raises:
        BusyError: another process is at this piece.
        DataError: the data cannot be used; the message says where.
    """
    if unit.piece is not None:
        return [_run_piece(job, unit, unit.piece)]
    count = job.cache.note(_stream_note(job, unit))
    if count is not None:
        return [_run_piece(job, unit, piece) for piece in range(int(count))]
    found = [_finish(job, unit, piece, events) for piece, events in enumerate(_stream(job.recipe, unit))]
    job.cache.take_note(_stream_note(job, unit), len(found))
    return found


def measure(job: Job, unit: Unit, transform: Fitted, before: Sequence[Transform]) -> list[Any]:
    """What a piece contributes to the fit of a transform; nothing where no event is left."""
    if unit.piece is None:
        tables = (apply(before, events) for events in _stream(job.recipe, unit))
    else:
        keys = stage_keys(job.parts, unit.source, unit.piece)
        tables = (apply(before, events) for events in [_events(job, unit, unit.piece, keys["read"])])
    return [transform.measure(table) for table in tables if len(table)]


def write_shard(cache: Cache, plan: ShardPlan) -> Shard:
    """Write one shard from cached parts, one part in memory at a time."""
    with atomic(plan.path) as temporary, h5py.File(temporary, "w") as file:
        appender = None
        for key, rows in plan.pieces:
            table = _part(cache, key).take(rows)
            if appender is None:
                appender = hdf5.Appender(file, table, events=plan.events, items=plan.items)
            appender.append(table)
    size = plan.path.stat().st_size
    return Shard(file=plan.path.name, events=plan.events, bytes=size, sha256=sha256(plan.path))


def _run_piece(job: Job, unit: Unit, piece: int) -> Part:
    keys = stage_keys(job.parts, unit.source, piece)
    table = job.cache.get("prepare", keys["prepare"])
    if table is not None:
        return _summary(job, keys["prepare"], table, job.cache.facts("prepare", keys["prepare"]))
    with job.cache.claim(keys["prepare"]):
        table = job.cache.get("transforms", keys["transforms"])
        if table is None:
            return _finish(job, unit, piece, _events(job, unit, piece, keys["read"]))
        read = job.cache.facts("transforms", keys["transforms"]).get("read", len(table))
        return _prepare(job, unit, keys["prepare"], table, read)


def _events(job: Job, unit: Unit, piece: int, key: str) -> Table:
    """The raw events of a piece, from the cache or from the file."""
    events = job.cache.get("read", key)
    if events is None:
        try:
            events = stages.checked(
                _sequence(job.recipe, unit.source.location)[piece], unit.where, job.recipe.label_columns()
            )
        except DataError as error:
            raise DataError(located(error, unit.where)) from error
        if "read" in job.keep:
            job.cache.put("read", key, events)
    return events


def _finish(job: Job, unit: Unit, piece: int, events: Table) -> Part:
    """Raw events through the other two stages."""
    keys = stage_keys(job.parts, unit.source, piece)
    try:
        table = apply(job.transforms, events)
    except DataError as error:
        raise DataError(located(error, unit.where)) from error
    if "transforms" in job.keep and job.transforms:
        job.cache.put("transforms", keys["transforms"], table, {"read": len(events)})
    return _prepare(job, unit, keys["prepare"], table, len(events))


def _prepare(job: Job, unit: Unit, key: str, events: Table, read: int) -> Part:
    table = stages.prepared(job.recipe, events, unit.where)
    facts = {"statistics": _statistics(table), "read": read}
    job.cache.put("prepare", key, table, facts)
    return _summary(job, key, table, facts)


def _summary(job: Job, key: str, table: Table, facts: dict[str, Any]) -> Part:
    sets = hdf5.item_sets(table)
    lengths = {name: table.ragged(name).lengths.astype(np.int32) for name in dict.fromkeys(sets.values())}
    keys = None
    if job.split_by not in ("event", "file") and len(table):
        keys = table.fixed(job.split_by).astype(np.int64)
    return Part(key, facts.get("read", len(table)), len(table), lengths, keys, facts["statistics"])


def _statistics(table: Table) -> dict[str, dict[str, float]]:
    """Count, extremes and sums of every column of numbers; sums are correctly rounded, so they add in any order."""
    found = {}
    for name, column in table.items():
        values = (column.values if isinstance(column, Ragged) else column).ravel()
        if values.dtype.kind in "biuf" and values.size:
            wide = values.astype(np.float64)
            found[name] = {
                "count": values.size,
                "min": float(wide.min()),
                "max": float(wide.max()),
                "sum": float(wide.sum()),
                "squares": float((wide * wide).sum()),
            }
    return found


def add_statistics(parts: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Statistics of a whole dataset: count, min, max, mean, std of each column."""
    columns = dict.fromkeys(name for part in parts for name in part)
    total = {}
    for name in columns:
        seen = [part[name] for part in parts if name in part]
        count = sum(int(each["count"]) for each in seen)
        mean = math.fsum(each["sum"] for each in seen) / count
        variance = math.fsum(each["squares"] for each in seen) / count - mean**2
        total[name] = {
            "count": count,
            "min": min(each["min"] for each in seen),
            "max": max(each["max"] for each in seen),
            "mean": mean,
            "std": math.sqrt(max(variance, 0.0)),
        }
    return total


def _stream(recipe: Recipe, unit: Unit) -> Iterator[Table]:
    try:
        for events in recipe.read(unit.source.location):
            yield stages.checked(events, unit.where, recipe.label_columns())
    except DataError as error:
        raise DataError(located(error, unit.where)) from error


def _stream_note(job: Job, unit: Unit) -> str:
    return f"stream-{key_of([unit.source.sha256, job.parts])}"


@lru_cache(maxsize=64)
def _sequence_of(kind: type[Recipe], settings: str, location: str) -> Any:
    return kind(kind.Config.model_validate_json(settings)).read(location)


def _sequence(recipe: Recipe, location: str) -> Any:
    """A file's pieces; a process plans a file once."""
    return _sequence_of(cast(Any, type(recipe)), recipe.config.model_dump_json(), location)


def _part(cache: Cache, key: str) -> Table:
    table = cache.get("prepare", key)
    if table is None:
        raise DataError(f"a prepared piece vanished from the cache {cache.folder} meanwhile; prepare again")
    return table


def located(error: DataError, where: str) -> str:
    """An error's text with the file in front, once."""
    text, where = str(error), mask_secrets(where)
    return text if text.startswith(split_inside(where.partition(" (")[0])[0]) else f"{where}: {text}"
