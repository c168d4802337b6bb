"""The way of one piece through the chain of stages."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clew.data.prepare import stages
from clew.data.prepare.chain import PREPARE, Stage, StageChain
from clew.data.prepare.inputs import InputSource
from clew.data.prepare.stage_cache import CachedResult, StageCache
from clew.data.prepare.stage_costs import StageCost, is_worth_storing, storage_speed
from clew.data.readers.items import ItemGroups
from clew.data.table import Ragged, Table
from clew.errors import DataError, RecipeError
from clew.recipe import Recipe
from clew.storage import mask_secrets, split_inside


@dataclass(frozen=True)
class PieceContext:
    """What all pieces of a preparation have in common."""

    recipe: Recipe
    chain: StageChain
    cache: StageCache
    split_by: str
    items: ItemGroups | None = None
    """The columns that are the same items in all files; None if each file decides. See `clew.data.readers.items`."""
    is_fit: bool = False
    """Whether another pass over the same pieces follows."""


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
class RawPiece:
    """A piece before its first stage."""

    number: int
    read: Callable[[], Table]
    """Returns the raw events."""
    seconds: float = 0.0
    """Time that reading has already taken."""


@dataclass
class ChainRun:
    """Takes one piece through the chain, measures every stage, and stores results where that pays."""

    job: PieceContext
    unit: InputPiece
    raw: RawPiece
    costs: dict[str, StageCost] = field(default_factory=dict)
    _unstored_seconds: float = 0.0
    """Time to compute again what was computed since the last stored result."""

    def __post_init__(self) -> None:
        self.keys = self.job.chain.keys(self.unit.source.sha256, self.raw.number)
        self.speed = storage_speed(self.job.cache.folder)

    def result(self) -> CachedResult:
        """Return the result of the last stage, computed from the last result in the cache."""
        stages = self.job.chain.stages
        start, result = self._last_stored()
        for stage, key in zip(stages[start:], self.keys[start:], strict=True):
            result = self._compute(stage, key, result)
        assert result is not None
        return result

    def _last_stored(self) -> tuple[int, CachedResult | None]:
        """Return the last result in the cache, and the number of the stage after it."""
        for number in range(len(self.keys), 0, -1):
            start = time.perf_counter()
            result = self.job.cache.get(self.job.chain.stages[number - 1].group, self.keys[number - 1])
            if result is not None:
                self.speed.read.add(result.table.nbytes, time.perf_counter() - start)
                return number, result
        return 0, None

    def _compute(self, stage: Stage, key: str, before: CachedResult | None) -> CachedResult:
        start = time.perf_counter()
        table = _contiguous(self.raw.read() if before is None else self._apply(stage, before.table))
        seconds = time.perf_counter() - start + (self.raw.seconds if before is None else 0.0)
        self._unstored_seconds += seconds
        is_last = stage.group == PREPARE  # shards are written from these results
        facts = {"read": len(table) if before is None else before.facts["read"]}
        result = CachedResult(table, {**facts, "statistics": _statistics(table)} if is_last else facts)
        round_trip = self.speed.round_trip(table.nbytes)
        pays = is_worth_storing(stage.keep, self._unstored_seconds, round_trip, needed_again=self.job.is_fit)
        stored = is_last or (pays and _is_numeric(table))
        if stored:
            start = time.perf_counter()
            self.job.cache.put(stage.group, key, result)
            self.speed.write.add(table.nbytes, time.perf_counter() - start)
            self._unstored_seconds = 0.0
        self.costs[stage.name] = StageCost(seconds, table.nbytes, round_trip, stored)
        return result

    def _apply(self, stage: Stage, events: Table) -> Table:
        if stage.transform is None:
            return stages.prepare_events(self.job.recipe, events, self.unit.where)
        try:
            table: Any = stage.transform(events)
        except DataError as error:
            raise DataError(with_location(error, self.unit.where)) from error
        if not isinstance(table, Table):
            raise RecipeError(f"the transform {stage.name} must return a table, it returned a {type(table).__name__}")
        return table


def _contiguous(table: Table) -> Table:
    """Return a table whose arrays lie in memory as those from the cache do. A sum of floats depends on that, and a
    stage must give the same bytes from the cache and from memory."""
    views: dict[str, Any] = {}
    for name, column in table.items():
        values = column.values if isinstance(column, Ragged) else column
        if not values.flags.c_contiguous:
            copy = np.ascontiguousarray(values)
            views[name] = column.share(copy) if isinstance(column, Ragged) else copy
    return table.join(views) if views else table


def _is_numeric(table: Table) -> bool:
    """Return whether all columns can be stored. Texts of an event may be an intermediate result."""
    return all((c.values if isinstance(c, Ragged) else c).dtype.kind in "biufc" for c in table.values())


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


def with_location(error: DataError, where: str) -> str:
    """Return the text of an error with the file in front, once."""
    text, where = str(error), mask_secrets(where)
    return text if text.startswith(split_inside(where.partition(" (")[0])[0]) else f"{where}: {text}"
