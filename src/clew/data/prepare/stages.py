"""The stages of events as plain functions of tables, without cache and processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from clew.data.readers import FilePieces
from clew.data.readers.items import ItemGroups
from clew.data.table import WEIGHT, Table
from clew.data.transforms import Select, Transform
from clew.data.transforms.base import apply
from clew.data.transforms.missing_columns import without_columns
from clew.errors import DataError, RecipeError, nearest
from clew.recipe import Recipe
from clew.recipe_errors import recipe_errors, wrong_return


def file_pieces(
    recipe: Recipe,
    transforms: Sequence[Transform],
    location: str,
    *,
    unlabelled: bool = False,
    items: ItemGroups | None = None,
) -> Iterator[Callable[[], Table]]:
    """Yield a function for each piece of a file. The function reads and prepares the piece; it may return no samples.

    A piece is only read when its function is called, if the reader supports that. The calls are independent of each
    other, and the pieces are always the same.

    Args:
        recipe: The recipe.
        transforms: The fitted transforms.
        location: Path or URL of the file.
        unlabelled: Whether the file may lack the columns of `Recipe.label_columns`. Columns computed from them are then
            left out.
        items: The columns that were the same items in the dataset of the transforms. None lets the file decide.

    Raises:
        DataError: the file cannot be used.
        RecipeError: the recipe returned something else than tables.
    """
    prepare_from = partial(_prepare_from, recipe, transforms, unlabelled)
    with _with_file_name(location), recipe_errors(f"input {location}"):
        pieces: Any = recipe.read(location)
        if unlabelled and isinstance(pieces, FilePieces):
            pieces = pieces.with_optional(recipe.label_columns())
        if isinstance(pieces, FilePieces):
            pieces = pieces.with_items(items)
        if isinstance(pieces, Sequence):
            names = piece_names(pieces, location)
            yield from (partial(_piece, prepare_from, pieces, place, name) for place, name in enumerate(names))
            return
        empty = True
        for events in pieces:
            empty = empty and not len(events)
            yield partial(prepare_from, lambda events=events: events, location)
    if empty:
        raise DataError(f"{location}: no events in it")


def piece_names(pieces: Sequence[Any], location: str) -> list[str]:
    """Return the name of each piece of a file, for messages: the file and, if there are several pieces, the range."""
    if len(pieces) == 1:
        return [location]
    if not isinstance(pieces, FilePieces):
        return [f"{location} (piece {number})" for number in range(len(pieces))]
    unit = pieces.reader.piece_unit
    return [f"{location} ({unit} {piece.start}-{piece.stop - 1})" for piece in pieces.plan]


def table_pieces(
    recipe: Recipe, transforms: Sequence[Transform], table: Table, size: int
) -> Iterator[Callable[[], Table]]:
    """Yield a function for each `size` events of a table in memory. The function prepares them.

    Args:
        recipe: The recipe.
        transforms: The fitted transforms.
        table: Events with the columns that `Recipe.read` returns. The columns of `Recipe.label_columns` may be missing.
        size: Events per piece.

    Raises:
        DataError: a column is missing or holds NaN, or the transforms remove events: then the result would not have
            one row per event.
    """
    check_events(table, "the events")  # the whole table: a message then has the number of the event
    for start in range(0, len(table), size):
        part = table if size >= len(table) else table.slice(start, start + size)
        yield partial(_prepare_all, recipe, transforms, part)


def _prepare_all(recipe: Recipe, transforms: Sequence[Transform], events: Table) -> Table:
    samples = _prepare_checked(recipe, transforms, events, "the events")
    if len(samples) != len(events):
        raise DataError(f"some events do not pass {_cuts(transforms)}; remove them, so that every event gets one row")
    return samples


def _piece(
    prepare_from: Callable[[Callable[[], Any], str], Table], pieces: Sequence[Any], place: int, name: str
) -> Table:
    return prepare_from(lambda: pieces[place], name)


def _prepare_from(
    recipe: Recipe, transforms: Sequence[Transform], unlabelled: bool, read: Callable[[], Any], location: str
) -> Table:
    labels = recipe.label_columns()
    with _with_file_name(location), recipe_errors(f"input {location}"):
        events = read()
    return _prepare_checked(recipe, transforms, check_events(events, location, () if unlabelled else labels), location)


def _prepare_checked(recipe: Recipe, transforms: Sequence[Transform], events: Table, location: str) -> Table:
    absent = [name for name in recipe.label_columns() if name not in events]
    if absent:
        transforms, removed = without_columns(transforms, absent)
        events = events.pick(*(name for name in events if name not in removed))
    with _with_file_name(location), recipe_errors(f"input {location}"):
        events = apply(transforms, events)
    return prepare_events(recipe, events, location)


@contextlib.contextmanager
def _with_file_name(location: str) -> Iterator[None]:
    """Add the name of the file to errors about the data."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{location}: {error}") from error


def check_events(events: Any, location: str, labels: Iterable[str] = ()) -> Table:
    """Return raw events after checking that they are a table without NaN that has the label columns.

    Raises:
        RecipeError: they are not a table.
        DataError: a column is missing, or holds NaN.
    """
    if not isinstance(events, Table):
        raise RecipeError(f"{location}: read() must yield tables, it yielded a {type(events).__name__}")
    for name in labels:
        if name not in events:
            raise DataError(f"{location}: no column '{name}', which training needs{_remedy(name, events)}")
    try:
        return events.check("error")
    except DataError as error:
        raise DataError(f"{location}: {error}") from error


def _remedy(name: str, events: Table) -> str:
    """Return the end of a message about a missing label: the similar name, or what can be done without labels."""
    hint = nearest(name, events)
    return (
        hint if "did you mean" in hint else "; without it, events can only be predicted: clew predict RUN --input FILE"
    )


def prepare_events(recipe: Recipe, events: Table, location: str) -> Table:
    """Return transformed events as samples, one per event. Event weights are kept. An empty table is returned
    unchanged.

    Raises:
        RecipeError: `Recipe.prepare` did not return one sample per event.
    """
    if not len(events):
        return events
    count = "" if location.endswith(")") else f", all {len(events):,} events"
    with _with_file_name(location), recipe_errors(f"input {location}{count}"):
        table: Any = recipe.prepare(events)
    if not isinstance(table, Table) or len(table) != len(events):
        got = f"{len(table):,} samples" if isinstance(table, Table) else f"a {type(table).__name__}"
        raise wrong_return(recipe, "prepare", f"{got} for {len(events):,} events of {location}")
    carried = WEIGHT in events and WEIGHT not in table
    return table.join({WEIGHT: events.fixed(WEIGHT)}) if carried else table


def no_events_error(transforms: Iterable[Transform]) -> DataError:
    """Return the error for transforms that no event of any file passes."""
    return DataError(f"no event passes {_cuts(transforms)}")


def _cuts(transforms: Iterable[Transform]) -> str:
    cuts = [f"select '{transform.where}'" for transform in transforms if isinstance(transform, Select)]
    return " and ".join(cuts) or "the transforms"


def total_events(tables: Iterable[Table]) -> int:
    """Return the number of events of all tables."""
    return sum(len(table) for table in tables)
