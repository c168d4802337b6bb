"""Tables: named columns of the same events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from clew.data.table.column import (
    Column,
    as_column,
    common_length,
    count_true,
    describe_column,
    events_not_finite,
    renumber,
)
from clew.data.table.conversions import TableConversions
from clew.data.table.ragged import Array, Offsets, Ragged, _trusted, gather, offsets_of
from clew.errors import DataError, nearest

WEIGHT = "weight"
EVENT_COLUMNS = ("run", "run_number", "lumi", "luminosityBlock", "event", "event_number", "event_id")
"""Columns that identify an event. Predictions contain those that exist."""


@dataclass(frozen=True)
class Field:
    """The description of a column without its data.

    Args:
        dtype: The NumPy dtype as text, such as `<f4`.
        shape: The shape of one item, or of one event for a fixed column.
        ragged: Whether the number of items varies from event to event.
        unit: The unit of the values; empty if there is none.
        index_of: The values are indices of items of this ragged column, counted from 0 within each event. For example,
            edges contain indices of nodes.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    ragged: bool = False
    unit: str = ""
    index_of: str = ""


class Table(TableConversions, Mapping[str, "Column"]):
    """Events in columns. A column is a NumPy array with one entry per event (fixed), or a `Ragged`.

    A table is not changed after it was made: every method returns a new table that shares the arrays. Several threads
    can read one table at the same time. A fixed column with the name `weight` holds the event weights; they may be
    negative.

    Args:
        columns: Arrays of shape (events, ...) or `Ragged` columns by name.
        units: Units by column. Units of other columns are ignored.
        index_of: For a column of indices, the ragged column whose items they count. See `Field.index_of`.

    Raises:
        DataError: the columns have different numbers of events, or `index_of` does not fit.

    Example:
        >>> x = Ragged.from_lists([[1.0, 2.0], [], [3.0]])
        >>> table = Table({"event": [7, 8, 9], "x": x, "y": x.share([4.0, 5.0, 6.0])}, units={"x": "mm"})
        >>> table
        Table(3 events; event: int64, x: ragged float64, y: ragged float64)
        >>> table.filter(table.fixed("event") > 7).ragged("x").values.tolist()
        [3.0]
        >>> table.select("x", x.values > 1).ragged("y").values.tolist()
        [5.0, 6.0]
    """

    def __init__(
        self,
        columns: Mapping[str, ArrayLike | Ragged],
        *,
        units: Mapping[str, str] | None = None,
        index_of: Mapping[str, str] | None = None,
    ) -> None:
        self._columns: dict[str, Column] = {
            name: column if isinstance(column, Ragged) else as_column(name, column) for name, column in columns.items()
        }
        self.units: dict[str, str] = {name: unit for name, unit in (units or {}).items() if name in columns}
        self.index_of: dict[str, str] = {n: of for n, of in (index_of or {}).items() if n in columns}
        self._length = common_length(self._columns)
        _check_references(self)

    def __getitem__(self, name: str) -> Column:
        try:
            return self._columns[name]
        except KeyError:
            raise DataError(f"no column '{name}' in the table{nearest(name, self._columns)}") from None

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return a column, or `default` if it does not exist."""
        return self._columns.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __len__(self) -> int:
        """Return the number of events (not of columns)."""
        return self._length

    def __repr__(self) -> str:
        return f"Table({len(self)} events; {', '.join(f'{n}: {describe_column(c)}' for n, c in self.items())})"

    def fixed(self, name: str) -> Array:
        """Return a column with one entry per event.

        Raises:
            DataError: the column does not exist, or is ragged.
        """
        column = self[name]
        if isinstance(column, Ragged):
            raise DataError(f"column '{name}' is ragged; one value per event was expected")
        return column

    def ragged(self, name: str) -> Ragged:
        """Return a ragged column.

        Raises:
            DataError: the column does not exist, or is not ragged.
        """
        column = self[name]
        if not isinstance(column, Ragged):
            raise DataError(f"column '{name}' has one value per event; a ragged column was expected")
        return column

    @property
    def schema(self) -> dict[str, Field]:
        """The description of every column."""
        return {name: self._field(name) for name in self}

    @property
    def weights(self) -> Array:
        """The event weights as float64; ones if the table has no weights."""
        return self.fixed(WEIGHT).astype(np.float64) if WEIGHT in self else np.ones(len(self))

    @property
    def nbytes(self) -> int:
        """The bytes of all values, without offsets."""
        return sum((c.values if isinstance(c, Ragged) else c).nbytes for c in self.values())

    def pick(self, *names: str) -> Table:
        """Return a table with these columns only, in this order.

        Raises:
            DataError: a column does not exist.
        """
        return self._like({name: self[name] for name in names})

    def drop(self, *names: str) -> Table:
        """Return a table without these columns.

        Raises:
            DataError: a column does not exist.
        """
        for name in names:
            self[name]
        return self._like({name: column for name, column in self.items() if name not in names})

    def join(
        self,
        columns: Mapping[str, ArrayLike | Ragged],
        *,
        units: Mapping[str, str] | None = None,
        index_of: Mapping[str, str] | None = None,
    ) -> Table:
        """Return a table with more columns.

        Args:
            columns: Columns to add. They replace columns of the same name; the unit stays unless a new one is set.
            units: Units of the new columns.
            index_of: Targets of new columns of indices. See `Field.index_of`.
        """
        return Table(
            {**self._columns, **columns},
            units={**self.units, **(units or {})},
            index_of={**self.index_of, **(index_of or {})},
        )

    def slice(self, start: int, stop: int | None = None) -> Table:
        """Return the events from `start` to `stop`. Values are views; only offsets are copied."""
        first, last, _ = slice(start, stop).indices(len(self))
        last = max(first, last)

        def cut(offsets: Offsets) -> tuple[slice, Offsets]:
            window = offsets[first : last + 1]
            return slice(int(window[0]), int(window[-1])), window - window[0]

        return self._rebuild(cut, slice(first, last))

    def take(self, events: ArrayLike) -> Table:
        """Return the events with these numbers, in this order. Numbers may repeat; negative numbers count from the end.

        Raises:
            DataError: these are not event numbers of this table.
        """
        index = np.asarray(events)
        index = index.astype(np.int64) if index.size == 0 else index
        if index.dtype.kind not in "iu" or index.ndim != 1:
            raise DataError(f"take needs event numbers, got {index.dtype} {index.shape}; filter takes a mask")
        outside = index[(index < -len(self)) | (index >= len(self))]
        if outside.size:
            raise DataError(f"event {outside[0]} is not in a table with {len(self)} events")
        index = np.where(index < 0, index + len(self), index).astype(np.int64)
        return self._rebuild(lambda offsets: gather(offsets, index), index)

    def filter(self, mask: ArrayLike) -> Table:
        """Return the events for which a mask is true.

        Args:
            mask: Booleans of shape (events,).

        Raises:
            DataError: the mask has another type or shape.
        """
        array = np.asarray(mask)
        if array.dtype != np.bool_ or array.shape != (len(self),):
            raise DataError(f"filter needs {len(self)} booleans, got {array.dtype} {array.shape}")
        return self.take(np.flatnonzero(array))

    def select(self, of: str, mask: ArrayLike) -> Table:
        """Keep some items of every event. All events stay.

        Args:
            of: A ragged column. The items are selected in all columns of the same items.
            mask: Booleans, one per item.

        Returns:
            A table in which columns of indices (`index_of`) of these items are renumbered.

        Raises:
            DataError: the mask does not fit, or a column contains the index of an item that would be removed.
        """
        like = self.ragged(of)
        keep = np.asarray(mask)
        if keep.dtype != np.bool_ or keep.shape != (len(like.values),):
            raise DataError(f"select needs {len(like.values)} booleans for '{of}', got {keep.dtype} {keep.shape}")
        new = offsets_of(count_true(keep, like.offsets))
        columns = dict(self._columns)
        for name in self.items_with(of):
            columns[name] = _trusted(self.ragged(name).values[keep], new)
        for name, target in self.index_of.items():
            if target in self.items_with(of):
                columns[name] = renumber(columns[name], name, like.offsets, keep, new)
        return self._like(columns)

    def items_with(self, of: str) -> list[str]:
        """Return the ragged columns that describe the same items as `of`: those that share its offsets array.

        Equal offsets in different arrays do not count: in a small table they may be equal by chance. `Ragged.share`
        makes columns that share the array.
        """
        like = self.ragged(of).offsets
        return [name for name, column in self.items() if isinstance(column, Ragged) and column.offsets is like]

    def check(self, nan: Literal["error", "drop", "allow"] = "error") -> Table:
        """Check for NaN and infinite values.

        Args:
            nan: `error` raises an error, `drop` removes the events, `allow` does nothing.

        Raises:
            DataError: a column holds NaN or infinity. The message contains the number of the event in the column
                `event`, or its position if there is no such column.
        """
        if nan == "allow":
            return self
        bad = np.zeros(len(self), dtype=bool)
        with np.errstate(over="ignore", invalid="ignore"):
            not_finite = {name: events_not_finite(column) for name, column in self.items()}
        for name, events in not_finite.items():
            if nan == "error" and events.size:
                raise DataError(f"column '{name}' holds NaN or infinity, first in event {self._number(events[0])}")
            bad[events] = True
        return self.filter(~bad) if bad.any() else self

    def _field(self, name: str) -> Field:
        column = self[name]
        values = column.values if isinstance(column, Ragged) else column
        return Field(
            values.dtype.str,
            tuple(values.shape[1:]),
            isinstance(column, Ragged),
            self.units.get(name, ""),
            self.index_of.get(name, ""),
        )

    def _number(self, place: int) -> Any:
        numbers = self.get("event")
        return numbers[place] if isinstance(numbers, np.ndarray) and numbers.ndim == 1 else place

    def _like(self, columns: Mapping[str, Column]) -> Table:
        targets = {name: self._stand_in(of, columns) for name, of in self.index_of.items() if name in columns}
        index_of = {name: of for name, of in targets.items() if of}
        return Table(columns, units=self.units, index_of=index_of) if columns else Table({})

    def _stand_in(self, of: str, columns: Mapping[str, Column]) -> str:
        """Return `of` or, if it is not among `columns`, another column of the same items, or an empty text."""
        if of in columns:
            return of
        offsets = self.ragged(of).offsets
        return next((n for n, c in columns.items() if isinstance(c, Ragged) and c.offsets is offsets), "")

    def _rebuild(self, cut: Callable[[Offsets], tuple[Any, Offsets]], events: Any) -> Table:
        """Apply a selection of events. `cut` returns rows and new offsets, once per shared offsets array."""
        cuts: dict[int, tuple[Any, Offsets]] = {}
        columns: dict[str, Column] = {}
        for name, column in self.items():
            if isinstance(column, Ragged):
                if id(column.offsets) not in cuts:
                    cuts[id(column.offsets)] = cut(column.offsets)
                rows, new = cuts[id(column.offsets)]
                columns[name] = _trusted(column.values[rows], new)
            else:
                columns[name] = column[events]
        return self._like(columns)


def _check_references(table: Table) -> None:
    for name, target in table.index_of.items():
        if target not in table:
            raise DataError(f"column '{name}' points at the items of '{target}', which is not in the table")
        table.ragged(target)
        if table.ragged(name).values.dtype.kind not in "iu":
            raise DataError(f"column '{name}' points at '{target}' and must be integers")
