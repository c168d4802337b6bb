"""The work of one process: take one piece of a file through all stages, or write one shard. Data is exchanged on
disk."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
from numpy.typing import NDArray

from clew.core.disk_errors import disk_error_text, final_path
from clew.core.files import atomic_path, sha256
from clew.data.dataset.manifest import Shard
from clew.data.prepare import stages
from clew.data.prepare.content_keys import Parts, key_of
from clew.data.prepare.inputs import InputSource
from clew.data.prepare.stage_cache import StageCache
from clew.data.readers import FilePieces
from clew.data.readers.items import ItemCounts, ItemGroups
from clew.data.table import Ragged, Table, hdf5
from clew.data.transforms import FittedTransform, Transform
from clew.data.transforms.base import apply
from clew.errors import DataError
from clew.recipe import Recipe
from clew.recipe_errors import recipe_errors
from clew.storage import mask_secrets, split_inside

Lengths = dict[str, NDArray[np.int32]]


@dataclass(frozen=True)
class PieceContext:
    """What all pieces of a preparation have in common."""

    recipe: Recipe
    transforms: tuple[Transform, ...]
    parts: dict[str, Parts]
    cache: StageCache
    keep: frozenset[str]
    split_by: str
    items: ItemGroups | None = None
    """The columns that are the same items in all files; None if each file decides. See `clew.data.readers.items`."""


@dataclass(frozen=True)
class InputPiece:
    """One piece of one file. `piece` is None for a file that can only be read from the beginning."""

    source: InputSource
    piece: int | None
    where: str
    """The file and the range, for messages."""
    bytes: int
    """Its approximate share of the file, in bytes."""


@dataclass(frozen=True)
class PreparedPiece:
    """A finished piece: the key of its samples in the cache, and facts about them."""

    key: str
    read: int
    """Number of events before the transforms, which may select."""
    events: int
    lengths: Lengths
    """Number of items per event, by set of items."""
    keys: NDArray[np.int64] | None
    """The values of the column that decides the split, if there is one."""
    statistics: dict[str, dict[str, float]]


@dataclass(frozen=True)
class ShardPlan:
    """A shard to write: which events of which pieces, in order."""

    path: Path
    pieces: tuple[tuple[str, NDArray[np.int64]], ...]
    items: dict[str, int]
    events: int


def stage_keys(parts: dict[str, Parts], source: InputSource, piece: int) -> dict[str, str]:
    """Return the key of every stage of a piece. Each key contains the one before it."""
    read = key_of([source.sha256, piece, parts["read"]])
    transforms = key_of([read, parts["transforms"]])
    return {"read": read, "transforms": transforms, "prepare": key_of([transforms, parts["prepare"]])}


def prepare_piece(job: PieceContext, unit: InputPiece) -> list[PreparedPiece]:
    """Take a piece through all stages. Cached results are used, and new results are cached.

    Raises:
        BusyError: another process is working on this piece.
        DataError: the data cannot be used. The message says where.
    """
    with recipe_errors(f"input {mask_secrets(unit.where)}"):
        return _prepare_piece(job, unit)


def _prepare_piece(job: PieceContext, unit: InputPiece) -> list[PreparedPiece]:
    if unit.piece is not None:
        return [_run_piece(job, unit, unit.piece)]
    count = job.cache.note(_stream_note(job, unit))
    if count is not None and all(_is_cached(job, unit, piece) for piece in range(int(count))):
        return [_run_piece(job, unit, piece) for piece in range(int(count))]
    pieces = [_finish(job, unit, piece, events) for piece, events in enumerate(_stream(job.recipe, unit))]
    job.cache.take_note(_stream_note(job, unit), len(pieces))
    return pieces


def _is_cached(job: PieceContext, unit: InputPiece, piece: int) -> bool:
    """Whether a piece can be prepared without reading its file."""
    keys = stage_keys(job.parts, unit.source, piece)
    return any(job.cache.has(stage, key) for stage, key in keys.items())


def measure(job: PieceContext, unit: InputPiece, transform: FittedTransform, before: Sequence[Transform]) -> list[Any]:
    """Return the contributions of a piece to the fit of a transform. The list is empty if no event is left."""
    with recipe_errors(f"input {mask_secrets(unit.where)}"):
        if unit.piece is None:
            tables = (apply(before, events) for events in _stream(job.recipe, unit))
        else:
            keys = stage_keys(job.parts, unit.source, unit.piece)
            tables = (apply(before, events) for events in [_events(job, unit, unit.piece, keys["read"])])
        return [transform.measure(table) for table in tables if len(table)]


def count_items(recipe: Recipe, unit: InputPiece) -> ItemCounts:
    """Return the number of items per event of a piece of a file.

    Raises:
        DataError: the file cannot be read.
    """
    assert unit.piece is not None
    try:
        counts: ItemCounts = _sequence(recipe, unit.source.location).item_counts(unit.piece)
    except DataError as error:
        raise DataError(with_location(error, unit.where)) from error
    return counts


def write_shard(cache: StageCache, plan: ShardPlan) -> Shard:
    """Write one shard from cached pieces, with one piece in memory at a time."""
    try:
        with atomic_path(plan.path) as temporary, h5py.File(temporary, "w") as file:
            appender = None
            for key, rows in plan.pieces:
                table = _part(cache, key).take(rows)
                if appender is None:
                    appender = hdf5.Appender(file, table, events=plan.events, items=plan.items)
                appender.append(table)
    except (OSError, RuntimeError) as error:
        message = disk_error_text(error, final_path(plan.path))
        if not message:
            raise
        raise DataError(message) from error
    size = plan.path.stat().st_size
    return Shard(file=plan.path.name, events=plan.events, bytes=size, sha256=sha256(plan.path))


def _run_piece(job: PieceContext, unit: InputPiece, piece: int) -> PreparedPiece:
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


def _events(job: PieceContext, unit: InputPiece, piece: int, key: str) -> Table:
    """Return the raw events of a piece, from the cache or from the file."""
    events = job.cache.get("read", key)
    if events is None:
        try:
            events = stages.check_events(_read_piece(job, unit, piece), unit.where, job.recipe.label_columns())
        except DataError as error:
            raise DataError(with_location(error, unit.where)) from error
        if "read" in job.keep:
            job.cache.put("read", key, events)
    return events


def _read_piece(job: PieceContext, unit: InputPiece, piece: int) -> Any:
    if unit.piece is not None:
        pieces = _sequence(job.recipe, unit.source.location)
        return (pieces.with_items(job.items) if isinstance(pieces, FilePieces) else pieces)[piece]
    # the cache was pruned after `_is_cached`: such a file can only be read from its beginning
    return next(itertools.islice(job.recipe.read(unit.source.location), piece, None))


def _finish(job: PieceContext, unit: InputPiece, piece: int, events: Table) -> PreparedPiece:
    """Take raw events through the other two stages."""
    keys = stage_keys(job.parts, unit.source, piece)
    try:
        table = apply(job.transforms, events)
    except DataError as error:
        raise DataError(with_location(error, unit.where)) from error
    if "transforms" in job.keep and job.transforms:
        job.cache.put("transforms", keys["transforms"], table, {"read": len(events)})
    return _prepare(job, unit, keys["prepare"], table, len(events))


def _prepare(job: PieceContext, unit: InputPiece, key: str, events: Table, read: int) -> PreparedPiece:
    table = stages.prepare_events(job.recipe, events, unit.where)
    facts = {"statistics": _statistics(table), "read": read}
    job.cache.put("prepare", key, table, facts)
    return _summary(job, key, table, facts)


def _summary(job: PieceContext, key: str, table: Table, facts: dict[str, Any]) -> PreparedPiece:
    sets = hdf5.item_sets(table)
    lengths = {name: table.ragged(name).lengths.astype(np.int32) for name in dict.fromkeys(sets.values())}
    keys = None
    if job.split_by not in ("event", "file") and len(table):
        keys = table.fixed(job.split_by).astype(np.int64)
    return PreparedPiece(key, facts.get("read", len(table)), len(table), lengths, keys, facts["statistics"])


def _statistics(table: Table) -> dict[str, dict[str, float]]:
    """Return count, extremes and sums of every column of numbers."""
    statistics = {}
    for name, column in table.items():
        values = (column.values if isinstance(column, Ragged) else column).ravel()
        if values.dtype.kind in "biuf" and values.size:
            wide = values.astype(np.float64)
            statistics[name] = {
                "count": values.size,
                "min": float(wide.min()),
                "max": float(wide.max()),
                "sum": float(wide.sum()),
                "squares": float((wide * wide).sum()),
            }
    return statistics


def add_statistics(parts: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the statistics of a dataset: count, min, max, mean and std of each column."""
    columns = dict.fromkeys(name for part in parts for name in part)
    total = {}
    for name in columns:
        column_parts = [part[name] for part in parts if name in part]
        count = sum(int(values["count"]) for values in column_parts)
        mean = math.fsum(values["sum"] for values in column_parts) / count
        variance = math.fsum(values["squares"] for values in column_parts) / count - mean**2
        total[name] = {
            "count": count,
            "min": min(values["min"] for values in column_parts),
            "max": max(values["max"] for values in column_parts),
            "mean": mean,
            "std": math.sqrt(max(variance, 0.0)),
        }
    return total


def _stream(recipe: Recipe, unit: InputPiece) -> Iterator[Table]:
    try:
        for events in recipe.read(unit.source.location):
            yield stages.check_events(events, unit.where, recipe.label_columns())
    except DataError as error:
        raise DataError(with_location(error, unit.where)) from error


def _stream_note(job: PieceContext, unit: InputPiece) -> str:
    return f"stream-{key_of([unit.source.sha256, job.parts])}"


@lru_cache(maxsize=64)
def _sequence_of(kind: type[Recipe], settings: str, location: str) -> Any:
    return kind(kind.Config.model_validate_json(settings)).read(location)


def _sequence(recipe: Recipe, location: str) -> Any:
    """Return the pieces of a file. A process plans a file once."""
    return _sequence_of(cast(Any, type(recipe)), recipe.config.model_dump_json(), location)


def _part(cache: StageCache, key: str) -> Table:
    table = cache.get("prepare", key)
    if table is None:
        raise DataError(
            f"a prepared piece was removed from the cache {cache.folder} during the preparation; prepare again"
        )
    return table


def with_location(error: DataError, where: str) -> str:
    """Return the text of an error with the file in front, once."""
    text, where = str(error), mask_secrets(where)
    return text if text.startswith(split_inside(where.partition(" (")[0])[0]) else f"{where}: {text}"
