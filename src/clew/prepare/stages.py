"""The stages every event goes through, as plain functions of tables. No cache, no processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from clew.errors import DataError, RecipeError
from clew.recipe import Recipe
from clew.table import WEIGHT, Table
from clew.transforms import Select, Transform
from clew.transforms.base import apply


def samples(recipe: Recipe, transforms: Sequence[Transform], location: str) -> Iterator[Table]:
    """The prepared samples of a file, piece by piece.

    Raises:
        DataError, RecipeError: naming the file.
    """
    seen = 0
    for events in _read(recipe, location):
        seen += len(events)
        table = prepared(recipe, apply(transforms, checked(events, location)), location)
        if len(table):
            yield table
    if not seen:
        raise DataError(f"{location}: no events in it")


def _read(recipe: Recipe, location: str) -> Iterator[Any]:
    try:
        yield from recipe.read(location)
    except DataError as error:
        raise DataError(f"{location}: {error}") from error


def checked(events: Any, location: str) -> Table:
    """Raw events as read: a table without NaN."""
    if not isinstance(events, Table):
        raise RecipeError(f"{location}: read() must give tables, it gave a {type(events).__name__}")
    try:
        return events.check("error")
    except DataError as error:
        raise DataError(f"{location}: {error}") from error


def prepared(recipe: Recipe, events: Table, location: str) -> Table:
    """Transformed events as samples, one an event; event weights are carried along. No events stay as they are.

    Raises:
        RecipeError: `prepare` did not give one sample an event.
    """
    if not len(events):
        return events
    try:
        table: Any = recipe.prepare(events)
    except DataError as error:
        raise DataError(f"{location}: {error}") from error
    if not isinstance(table, Table) or len(table) != len(events):
        got = f"{len(table)} samples" if isinstance(table, Table) else type(table).__name__
        raise RecipeError(f"{type(recipe).__name__}.prepare gave {got} for {len(events)} events")
    carried = WEIGHT in events and WEIGHT not in table
    return table.join({WEIGHT: events.fixed(WEIGHT)}) if carried else table


def none_left(transforms: Iterable[Transform]) -> DataError:
    """What to say where the transforms left no event of any file."""
    cuts = [f"select '{transform.where}'" for transform in transforms if isinstance(transform, Select)]
    return DataError(f"no event passes {' and '.join(cuts) or 'the transforms'}")


def total(tables: Iterable[Table]) -> int:
    """Events in all of them."""
    return sum(len(table) for table in tables)
