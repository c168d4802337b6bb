"""The stages every event goes through, as plain functions of tables. No cache, no processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from clew.data.readers import Pieces
from clew.data.table import WEIGHT, Table
from clew.data.transforms import Select, Transform
from clew.data.transforms.base import apply
from clew.data.transforms.missing_columns import without
from clew.errors import DataError, RecipeError, nearest
from clew.recipe import Recipe


def units(
    recipe: Recipe, transforms: Sequence[Transform], location: str, *, unlabelled: bool = False
) -> Iterator[Callable[[], Table]]:
    """The pieces of a file, each as what reads and prepares it when called; it may give no samples.

    A piece that nobody calls is not read, where the recipe's reader can be asked for pieces by number. Calls are
    independent of each other, and the pieces the same every time. Those of a file that is `unlabelled` may lack the
    columns of `Recipe.label_columns`; what is made of them is then left out.

    Raises:
        DataError, RecipeError: naming the file.
    """
    made = partial(_made, recipe, transforms, location, unlabelled)
    with _named(location):
        pieces: Any = recipe.read(location)
        if unlabelled and isinstance(pieces, Pieces):
            pieces = pieces.lenient(recipe.label_columns())
        if isinstance(pieces, Sequence):
            yield from (partial(_piece, made, pieces, place) for place in range(len(pieces)))
            return
        empty = True
        for events in pieces:
            empty = empty and not len(events)
            yield partial(made, lambda events=events: events)
    if empty:
        raise DataError(f"{location}: no events in it")


def _piece(made: Callable[[Callable[[], Any]], Table], pieces: Sequence[Any], place: int) -> Table:
    return made(lambda: pieces[place])


def _made(
    recipe: Recipe, transforms: Sequence[Transform], location: str, unlabelled: bool, read: Callable[[], Any]
) -> Table:
    truth = recipe.label_columns()
    with _named(location):
        events = read()
    events = checked(events, location, () if unlabelled else truth)
    absent = [name for name in truth if name not in events]
    if absent:
        transforms, gone = without(transforms, absent)
        events = events.pick(*(name for name in events if name not in gone))
    with _named(location):
        events = apply(transforms, events)
    return prepared(recipe, events, location)


@contextlib.contextmanager
def _named(location: str) -> Iterator[None]:
    """Within, what is wrong with the data is told with the file's name in front."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{location}: {error}") from error


def checked(events: Any, location: str, truth: Iterable[str] = ()) -> Table:
    """Raw events as read: a table without NaN, and with these columns."""
    if not isinstance(events, Table):
        raise RecipeError(f"{location}: read() must give tables, it gave a {type(events).__name__}")
    for name in truth:
        if name not in events:
            raise DataError(f"{location}: no column '{name}'{nearest(name, events)}")
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
