"""Choosing events and items, and adding columns, by expressions over columns."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator

from clew.data.expression import Expression, truth
from clew.data.table import WEIGHT, Column, Ragged, Table
from clew.data.transforms.base import Transform
from clew.errors import ConfigError, DataError


def _checked(text: str) -> str:
    try:
        Expression(text)
    except ConfigError as error:
        raise ValueError(str(error)) from error  # pydantic adds which setting it is, and its file and line
    return text


ExpressionText = Annotated[str, AfterValidator(_checked)]
"""In settings: an expression over columns, checked when the settings are read."""


class Select(Transform):
    """Keeps the events for which `where`, a condition on the event, is true."""

    kind: Literal["select"] = "select"
    where: ExpressionText

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns it looks at."""
        return Expression(self.where).names

    def __call__(self, events: Table) -> Table:
        chosen = Expression(self.where).evaluate(events)
        if isinstance(chosen, Ragged):
            raise ConfigError(
                f"select '{self.where}' has a value for every item, not one an event; use any(), all() or sum(), "
                "or select_items"
            )
        return events.filter(truth(chosen))


class SelectItems(Transform):
    """Keeps the items for which `where` is true, in all columns of those items; every event stays.

    Columns that point at the items are renumbered; one that points at an item that would go is an error.
    """

    kind: Literal["select_items"] = "select_items"
    where: ExpressionText

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns it looks at."""
        return Expression(self.where).names

    def __call__(self, events: Table) -> Table:
        chosen = Expression(self.where).evaluate(events)
        if not isinstance(chosen, Ragged):
            raise ConfigError(f"select_items '{self.where}' has one value an event, not one an item; use select")
        like = next(n for n, c in events.items() if isinstance(c, Ragged) and c.offsets is chosen.offsets)
        return events.select(like, truth(chosen.values))


class SameItems(Transform):
    """Says that columns describe the same items, where a file does not: vectors of a ROOT tree have no counter."""

    kind: Literal["same_items"] = "same_items"
    columns: tuple[str, ...]
    """Names, or patterns of names such as `part_*`; those of columns that are not ragged, or not there, are passed."""

    @property
    def needs(self) -> tuple[str, ...]:
        """None: it takes what is there."""
        return ()

    def __call__(self, events: Table) -> Table:
        named = [name for name in events if any(fnmatchcase(name, pattern) for pattern in self.columns)]
        found = {name: column for name in named if isinstance(column := events[name], Ragged)}
        if len({id(column.offsets) for column in found.values()}) < 2:
            return events
        first, like = next(iter(found.items()))
        for name, column in found.items():
            if not np.array_equal(column.offsets, like.offsets):
                event = int(np.argmax(column.lengths != like.lengths))
                raise DataError(
                    f"same_items: '{first}' and '{name}' differ: event {event} has {like.lengths[event]} and "
                    f"{column.lengths[event]} items"
                )
        return events.join({name: like.share(column.values) for name, column in found.items()})


class Compute(Transform):
    """Adds the column `column`, or replaces it; `weight` makes event weights."""

    kind: Literal["compute"] = "compute"
    column: str
    expression: ExpressionText
    unit: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns it is computed from."""
        return Expression(self.expression).names

    def __call__(self, events: Table) -> Table:
        new = Expression(self.expression).evaluate(events)
        self._check(events, new)
        if self.column == WEIGHT and not isinstance(new, Ragged):
            new = new.astype(np.float64)
        return events.join({self.column: new}, units={self.column: self.unit})

    def _check(self, events: Table, new: Column) -> None:
        """What is read holds no NaN; what is computed may not bring it in again."""
        what = f"compute {self.column} = '{self.expression}'"
        if self.column == WEIGHT and isinstance(new, Ragged):
            raise ConfigError(f"{what}: event weights are one value an event; use sum(), min(), max() or first()")
        try:
            events.pick(*(name for name in ("event",) if name in events)).join({self.column: new}).check("error")
        except DataError as error:
            raise DataError(f"{what}: {error}; guard it with where(), or select before") from error
