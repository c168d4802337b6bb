"""Selections and computed columns by expressions of weaver."""

from __future__ import annotations

from typing import Any, Literal

import awkward as ak
import numpy as np
from numpy.typing import NDArray

from clew.data.table import Table
from clew.data.transforms import Transform
from clew.errors import DataError
from clew.models.weaver.expressions import ComputedColumns, raw_columns


class WeaverSelect(Transform):
    """Keeps the events for which the expression is true."""

    kind: Literal["weaver_select"] = "weaver_select"
    where: str
    variables: dict[str, str] = {}

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns that the expression reads."""
        return raw_columns(("?",), {**self.variables, "?": self.where})

    def __call__(self, events: Table) -> Table:
        chosen = ComputedColumns(events, self.variables).evaluate(self.where, "selection")
        mask = np.asarray(ak.to_numpy(chosen, allow_missing=False)) if isinstance(chosen, ak.Array) else chosen
        if np.shape(mask) != (len(events),):
            raise DataError(f"selection '{self.where}' has no single value per event; use ak.any or ak.all")
        return events.filter(np.asarray(mask).astype(bool))


class WeaverColumns(Transform):
    """Adds computed columns. Columns on the way to them, such as four-momenta, are not added."""

    kind: Literal["weaver_columns"] = "weaver_columns"
    variables: dict[str, str]
    columns: tuple[str, ...]

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns that the expressions read."""
        return raw_columns(self.columns, self.variables)

    @property
    def makes(self) -> tuple[str, ...]:
        """The new columns."""
        return tuple(name for name in self.columns if name in self.variables)

    def __call__(self, events: Table) -> Table:
        if not self.makes:
            return events
        computed = ComputedColumns(events, self.variables)
        return events.join(Table.from_awkward(ak.Array({name: computed[name] for name in self.makes})))


class WeaverClasses(Transform):
    """Adds the number of the class of each event, of several columns of which one is 1."""

    kind: Literal["weaver_classes"] = "weaver_classes"
    column: str
    classes: tuple[str, ...]

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns of the classes."""
        return self.classes

    @property
    def makes(self) -> tuple[str, ...]:
        """The number of the class."""
        return (self.column,)

    def __call__(self, events: Table) -> Table:
        flags: NDArray[Any] = np.stack([events.fixed(name) for name in self.classes], axis=1)
        total = flags.sum(axis=1)
        if (total != 1).any():
            what = "no class" if (total < 1).any() else "several classes"
            names = ", ".join(self.classes[:4]) + (", ..." if len(self.classes) > 4 else "")
            raise DataError(f"an event belongs to {what} of {names}; exclude it by the selection")
        return events.join({self.column: flags.argmax(axis=1)})
