"""Selection of events and items, and computed columns, by expressions over columns."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator

from clew.data.expression import Expression, is_true
from clew.data.table import WEIGHT, Column, Ragged, Table, different_items
from clew.data.transforms.base import Transform
from clew.errors import ConfigError, DataError


def _checked(text: str) -> str:
    try:
        Expression(text)
    except ConfigError as error:
        raise ValueError(str(error)) from error  # pydantic adds which setting it is, and its file and line
    return text


ExpressionText = Annotated[str, AfterValidator(_checked)]
"""An expression over columns, as a setting. It is checked when the settings are read."""


class _Condition(Transform):
    where: ExpressionText

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns that the transform reads."""
        return Expression(self.where).names


class Select(_Condition):
    """Keeps the events for which the condition `where` is true."""

    kind: Literal["select"] = "select"

    def __call__(self, events: Table) -> Table:
        chosen = Expression(self.where).evaluate(events)
        if isinstance(chosen, Ragged):
            raise ConfigError(
                f"select '{self.where}' has one value per item, not one per event; use any(), all() or sum(), "
                "or select_items"
            )
        return events.filter(is_true(chosen))


class SelectItems(_Condition):
    """Keeps the items for which `where` is true, in all columns of those items. All events stay.

    Columns of indices of these items are renumbered. An index of an item that would be removed is an error.
    """

    kind: Literal["select_items"] = "select_items"

    def __call__(self, events: Table) -> Table:
        chosen = Expression(self.where).evaluate(events)
        if not isinstance(chosen, Ragged):
            raise ConfigError(f"select_items '{self.where}' has one value per event, not one per item; use select")
        like = next(n for n, c in events.items() if isinstance(c, Ragged) and c.offsets is chosen.offsets)
        return events.select(like, is_true(chosen.values))


class SameItems(Transform):
    """Declares that columns describe the same items, for files that do not say so: vectors of a ROOT tree have no
    counter."""

    kind: Literal["same_items"] = "same_items"
    columns: tuple[str, ...]
    """Names, or patterns such as `part_*`. Columns that do not exist or are not ragged are ignored."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Empty: the transform uses the columns that exist."""
        return ()

    def __call__(self, events: Table) -> Table:
        named = [name for name in events if any(fnmatchcase(name, pattern) for pattern in self.columns)]
        ragged = {name: column for name in named if isinstance(column := events[name], Ragged)}
        if len({id(column.offsets) for column in ragged.values()}) < 2:
            return events
        first, like = next(iter(ragged.items()))
        for name, column in ragged.items():
            if not np.array_equal(column.offsets, like.offsets):
                raise DataError(f"same_items: {different_items(first, like, name, column)}")
        return events.join({name: like.share(column.values) for name, column in ragged.items()})


class Compute(Transform):
    """Adds or replaces the column `column`. The column `weight` sets the event weights."""

    kind: Literal["compute"] = "compute"
    column: str
    expression: ExpressionText
    unit: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns from which the new one is computed."""
        return Expression(self.expression).names

    @property
    def makes(self) -> tuple[str, ...]:
        """The new column."""
        return (self.column,)

    def __call__(self, events: Table) -> Table:
        new = Expression(self.expression).evaluate(events)
        self._check(events, new)
        if self.column == WEIGHT and not isinstance(new, Ragged):
            new = new.astype(np.float64)
        return events.join({self.column: new}, units={self.column: self.unit})

    def _check(self, events: Table, new: Column) -> None:
        """Check for NaN: what is read has none, and a computed column must not introduce it."""
        what = f"compute {self.column} = '{self.expression}'"
        if self.column == WEIGHT and isinstance(new, Ragged):
            raise ConfigError(f"{what}: event weights need one value per event; use sum(), min(), max() or first()")
        try:
            events.pick(*(name for name in ("event",) if name in events)).join({self.column: new}).check("error")
        except DataError as error:
            raise DataError(f"{what}: {error}; guard it with where(), or select before") from error
