"""The work of one process: take one piece of a file through all stages. Data is exchanged on disk."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from clew.data.prepare import stages
from clew.data.prepare.chain import PREPARE, StageChain
from clew.data.prepare.chain_run import ChainRun, InputPiece, PieceContext, RawPiece, with_location
from clew.data.prepare.content_keys import key_of
from clew.data.prepare.inputs import InputSource
from clew.data.prepare.stage_cache import CachedResult, StageCache
from clew.data.prepare.stage_costs import StageCost
from clew.data.readers import FilePieces
from clew.data.readers.items import ItemCounts
from clew.data.table import Table, hdf5
from clew.data.transforms import FittedTransform
from clew.errors import DataError
from clew.recipe import Recipe
from clew.recipe_errors import recipe_errors
from clew.storage import mask_secrets

Lengths = dict[str, NDArray[np.int32]]


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
    costs: dict[str, StageCost]
    """What the stages took that were computed."""
    columns: str
    """A hash of the names and types of all columns."""


def prepare_piece(job: PieceContext, unit: InputPiece) -> list[PreparedPiece]:
    """Take a piece through all stages, from the last result in the cache. New results are stored where that pays.

    Raises:
        BusyError: another process is working on this piece.
        DataError: the data cannot be used. The message says where.
    """
    with recipe_errors(f"input {mask_secrets(unit.where)}"):
        return [_prepared(job, unit, raw) for raw in _raw_pieces(job, unit)]


def measure(job: PieceContext, transform: FittedTransform, unit: InputPiece) -> list[Any]:
    """Return the contributions of a piece to the fit of a transform. The list is empty if no event is left.

    Args:
        job: Its chain ends with the stage before the transform.
        transform: The transform.
        unit: The piece.
    """
    with recipe_errors(f"input {mask_secrets(unit.where)}"):
        tables = (ChainRun(job, unit, raw).result().table for raw in _raw_pieces(job, unit))
        return [transform.measure(table) for table in tables if len(table)]


def stream_pieces(cache: StageCache, chain: StageChain, source: InputSource) -> int | None:
    """Return the number of pieces of a file that can only be read from the beginning; None if it is not known."""
    count = cache.note(_stream_note(chain, source))
    return None if count is None else int(count)


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


def _raw_pieces(job: PieceContext, unit: InputPiece) -> Iterator[RawPiece]:
    """Yield the pieces of a unit: one, or all of a file that can only be read from the beginning."""
    if unit.piece is not None:
        yield RawPiece(unit.piece, partial(_read_piece, job, unit, unit.piece))
        return
    count = stream_pieces(job.cache, job.chain, unit.source)
    if count is not None and all(_is_cached(job, unit, piece) for piece in range(count)):
        yield from (RawPiece(piece, partial(_read_piece, job, unit, piece)) for piece in range(count))
        return
    count, start = 0, time.perf_counter()
    for count, events in enumerate(_stream(job.recipe, unit), start=1):
        yield RawPiece(count - 1, partial(_same_events, events), time.perf_counter() - start)
        start = time.perf_counter()
    job.cache.take_note(_stream_note(job.chain, unit.source), count)


def _same_events(events: Table) -> Table:
    return events


def _is_cached(job: PieceContext, unit: InputPiece, piece: int) -> bool:
    """Whether a piece can be prepared without reading its file."""
    keys = job.chain.keys(unit.source.sha256, piece)
    return any(job.cache.has(stage.group, key) for stage, key in zip(job.chain.stages, keys, strict=True))


def _prepared(job: PieceContext, unit: InputPiece, raw: RawPiece) -> PreparedPiece:
    run = ChainRun(job, unit, raw)
    last = run.keys[-1]
    result = job.cache.get(PREPARE, last)
    if result is None:
        with job.cache.claim(last) if unit.piece is not None else contextlib.nullcontext():
            result = run.result()
    return _summary(job, last, result, run.costs)


def _read_piece(job: PieceContext, unit: InputPiece, piece: int) -> Table:
    """Return the raw events of a piece of a file."""
    try:
        return stages.check_events(_events_of(job, unit, piece), unit.where, job.recipe.label_columns())
    except DataError as error:
        raise DataError(with_location(error, unit.where)) from error


def _events_of(job: PieceContext, unit: InputPiece, piece: int) -> Any:
    if unit.piece is not None:
        pieces = _sequence(job.recipe, unit.source.location)
        return (pieces.with_items(job.items) if isinstance(pieces, FilePieces) else pieces)[piece]
    # the cache was pruned after `_is_cached`: such a file can only be read from its beginning
    return next(itertools.islice(job.recipe.read(unit.source.location), piece, None))


def _summary(job: PieceContext, key: str, result: CachedResult, costs: dict[str, StageCost]) -> PreparedPiece:
    table = result.table
    sets = hdf5.item_sets(table)
    lengths = {name: table.ragged(name).lengths.astype(np.int32) for name in dict.fromkeys(sets.values())}
    keys = None
    if job.split_by not in ("event", "file") and len(table):
        keys = table.fixed(job.split_by).astype(np.int64)
    return PreparedPiece(
        key=key,
        read=result.facts["read"],
        events=len(table),
        lengths=lengths,
        keys=keys,
        statistics=result.facts["statistics"],
        costs=costs,
        columns=key_of([[name, asdict(column)] for name, column in table.schema.items()] + [sets]),
    )


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


def _stream_note(chain: StageChain, source: InputSource) -> str:
    return f"pieces-{chain.keys(source.sha256, 0)[0]}"


@lru_cache(maxsize=64)
def _sequence_of(kind: type[Recipe], settings: str, location: str) -> Any:
    return kind(kind.Config.model_validate_json(settings)).read(location)


def _sequence(recipe: Recipe, location: str) -> Any:
    """Return the pieces of a file. A process plans a file once."""
    return _sequence_of(cast(Any, type(recipe)), recipe.config.model_dump_json(), location)


def prepared_table(cache: StageCache, key: str) -> Table:
    """Return the samples of a piece that this preparation has finished.

    Raises:
        DataError: another process has removed them.
    """
    result = cache.get(PREPARE, key, verify=False)
    if result is None:
        raise DataError(
            f"a prepared piece was removed from the cache {cache.folder} during the preparation; prepare again"
        )
    return result.table
