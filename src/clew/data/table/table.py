"""Tables: named columns over the same events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from clew.data.table.ragged import Array, Offsets, Ragged, _trusted, gather, offsets_of
from clew.errors import DataError, nearest

Column: TypeAlias = "Array | Ragged"
WEIGHT = "weight"


@dataclass(frozen=True)
class Field:
    """What a column is, without its data.

    `shape` is that of one item (or of one event, for a fixed column). `index_of` names a ragged column
    whose items, counted from 0 within the event, the values point at: edges point at nodes.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    ragged: bool = False
    unit: str = ""
    index_of: str = ""


class Table(Mapping[str, "Column"]):
    """Events in columns; immutable by convention: every method returns a new table that shares what it can.

    A fixed column named `weight` holds the event weights (negative ones are allowed).
    Threads may read one table at a time without locks.
    """

    def __init__(
        self,
        columns: Mapping[str, ArrayLike | Ragged],
        *,
        units: Mapping[str, str] | None = None,
        index_of: Mapping[str, str] | None = None,
    ) -> None:
        self._columns: dict[str, Column] = {
            name: column if isinstance(column, Ragged) else _array(name, column) for name, column in columns.items()
        }
        self.units: dict[str, str] = {name: unit for name, unit in (units or {}).items() if name in columns}
        self.index_of: dict[str, str] = {n: of for n, of in (index_of or {}).items() if n in columns}
        self._length = _common_length(self._columns)
        _check_references(self)

    def __getitem__(self, name: str) -> Column:
        try:
            return self._columns[name]
        except KeyError:
            raise DataError(f"no column '{name}' in the table{nearest(name, self._columns)}") from None

    def get(self, name: str, default: Any = None, /) -> Any:
        """A column, or `default` where there is none."""
        return self._columns.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __len__(self) -> int:
        """The number of events (not of columns)."""
        return self._length

    def __repr__(self) -> str:
        return f"Table({len(self)} events; {', '.join(f'{n}: {_describe(c)}' for n, c in self.items())})"

    def fixed(self, name: str) -> Array:
        """A column known to be fixed.

        Raises:
            DataError: it is missing, or ragged.
        """
        column = self[name]
        if isinstance(column, Ragged):
            raise DataError(f"column '{name}' is ragged, one value an event was expected")
        return column

    def ragged(self, name: str) -> Ragged:
        """A column known to be ragged.

        Raises:
            DataError: it is missing, or fixed.
        """
        column = self[name]
        if not isinstance(column, Ragged):
            raise DataError(f"column '{name}' has one value an event, a ragged column was expected")
        return column

    @property
    def schema(self) -> dict[str, Field]:
        """What each column is."""
        return {name: self._field(name) for name in self}

    @property
    def weights(self) -> Array:
        """Event weights as float64; ones where the table has none."""
        return self.fixed(WEIGHT).astype(np.float64) if WEIGHT in self else np.ones(len(self))

    @property
    def nbytes(self) -> int:
        """Bytes of all values, offsets not counted."""
        return sum((c.values if isinstance(c, Ragged) else c).nbytes for c in self.values())

    def pick(self, *names: str) -> Table:
        """Only these columns, in this order."""
        return self._like({name: self[name] for name in names})

    def drop(self, *names: str) -> Table:
        """All columns but these."""
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
        """These columns added, replacing those of the same name (whose unit stays unless given)."""
        return Table(
            {**self._columns, **columns},
            units={**self.units, **(units or {})},
            index_of={**self.index_of, **(index_of or {})},
        )

    def slice(self, start: int, stop: int | None = None) -> Table:
        """Events start to stop; values are views, nothing is copied but offsets."""
        first, last, _ = slice(start, stop).indices(len(self))
        last = max(first, last)

        def cut(offsets: Offsets) -> tuple[slice, Offsets]:
            window = offsets[first : last + 1]
            return slice(int(window[0]), int(window[-1])), window - window[0]

        return self._rebuild(cut, slice(first, last))

    def take(self, events: ArrayLike) -> Table:
        """The events with these numbers, in this order; numbers may repeat."""
        index = np.asarray(events)
        index = index.astype(np.int64) if index.size == 0 else index
        if index.dtype.kind not in "iu" or index.ndim != 1:
            raise DataError(f"take needs event numbers, got {index.dtype} {index.shape}; filter takes a mask")
        outside = index[(index < -len(self)) | (index >= len(self))]
        if outside.size:
            raise DataError(f"event {outside[0]} asked of a table with {len(self)} events")
        index = np.where(index < 0, index + len(self), index).astype(np.int64)
        return self._rebuild(lambda offsets: gather(offsets, index), index)

    def filter(self, mask: ArrayLike) -> Table:
        """The events where a boolean mask, one value an event, is true."""
        array = np.asarray(mask)
        if array.dtype != np.bool_ or array.shape != (len(self),):
            raise DataError(f"filter needs {len(self)} booleans, got {array.dtype} {array.shape}")
        return self.take(np.flatnonzero(array))

    def select(self, of: str, mask: ArrayLike) -> Table:
        """Keep the items of `of` where `mask` is true, in every column of the same items; events all stay.

        Columns that point at those items (`index_of`) are renumbered.

        Raises:
            DataError: the mask does not fit, or a column points at an item that would go.
        """
        like = self.ragged(of)
        keep = np.asarray(mask)
        if keep.dtype != np.bool_ or keep.shape != (len(like.values),):
            raise DataError(f"select needs {len(like.values)} booleans for '{of}', got {keep.dtype} {keep.shape}")
        new = offsets_of(_sums(keep, like.offsets))
        columns = dict(self._columns)
        for name in self.items_with(of):
            columns[name] = _trusted(self.ragged(name).values[keep], new)
        for name, target in self.index_of.items():
            if target in self.items_with(of):
                columns[name] = _renumber(_ragged(columns[name], name), name, like.offsets, keep, new)
        return self._like(columns)

    def items_with(self, of: str) -> list[str]:
        """The ragged columns that describe the same items as `of`: those that share its offsets array.

        Equal offsets do not count: in a small table they may agree by chance. `Ragged.share` makes columns that share.
        """
        like = self.ragged(of).offsets
        return [name for name, column in self.items() if isinstance(column, Ragged) and column.offsets is like]

    def check(self, nan: Literal["error", "drop", "allow"] = "error") -> Table:
        """Apply a policy to NaN and infinite values: raise with column and event, drop those events, or pass.

        An error calls an event by its number in the column `event`, or by its place where there is no such column.
        """
        if nan == "allow":
            return self
        bad = np.zeros(len(self), dtype=bool)
        for name, column in self.items():
            events = _not_finite(column)
            if nan == "error" and events.size:
                raise DataError(f"column '{name}' holds NaN or infinity, first in event {self._number(events[0])}")
            bad[events] = True
        return self.filter(~bad) if bad.any() else self

    def to_awkward(self) -> Any:
        """A record array with one field a column; values are shared, units do not travel."""
        from clew.data.table import interop

        return interop.to_awkward(self)

    @staticmethod
    def from_awkward(array: Any) -> Table:
        """A table from a record array whose fields are flat, regular, or lists one level deep."""
        from clew.data.table import interop

        return interop.from_awkward(array)

    def save(self, path: str | Path) -> None:
        """Write to an HDF5 file, whole or not at all."""
        from clew.data.table import hdf5

        hdf5.save(self, Path(path))

    @staticmethod
    def load(path: str | Path, *, columns: Sequence[str] | None = None) -> Table:
        """Read from an HDF5 file that `save` (or `clew prepare`) wrote."""
        from clew.data.table import hdf5

        return hdf5.load(Path(path), columns=columns)

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
        kept = {name: of for name, of in targets.items() if of}
        return Table(columns, units=self.units, index_of=kept) if columns else Table({})

    def _stand_in(self, of: str, columns: Mapping[str, Column]) -> str:
        """`of`, or where it is not among `columns` one of the same items, or nothing."""
        if of in columns:
            return of
        offsets = self.ragged(of).offsets
        return next((n for n, c in columns.items() if isinstance(c, Ragged) and c.offsets is offsets), "")

    def _rebuild(self, cut: Callable[[Offsets], tuple[Any, Offsets]], events: Any) -> Table:
        """Apply an event selection: `cut` gives rows and new offsets, computed once per shared offsets array."""
        done: dict[int, tuple[Any, Offsets]] = {}
        columns: dict[str, Column] = {}
        for name, column in self.items():
            if isinstance(column, Ragged):
                if id(column.offsets) not in done:
                    done[id(column.offsets)] = cut(column.offsets)
                rows, new = done[id(column.offsets)]
                columns[name] = _trusted(column.values[rows], new)
            else:
                columns[name] = column[events]
        return self._like(columns)


def concat(tables: Sequence[Table]) -> Table:
    """Tables with the same columns, one after the other.

    Raises:
        DataError: none given, or columns, kinds, shapes or units differ.
    """
    if not tables:
        raise DataError("concat needs at least one table")
    first = tables[0]
    if len(tables) == 1:
        return first
    for table in tables[1:]:
        _check_alike(first, table)
    shared: dict[tuple[int, ...], Offsets] = {}
    columns: dict[str, Column] = {}
    for name, column in first.items():
        if isinstance(column, Ragged):
            parts = [table.ragged(name) for table in tables]
            key = tuple(id(part.offsets) for part in parts)
            if key not in shared:
                shared[key] = offsets_of(np.concatenate([part.lengths for part in parts]))
            columns[name] = _trusted(np.concatenate([part.values for part in parts]), shared[key])
        else:
            columns[name] = np.concatenate([table.fixed(name) for table in tables])
    return Table(columns, units=first.units, index_of=first.index_of)


def _check_alike(first: Table, other: Table) -> None:
    if list(first) != list(other):
        raise DataError(f"tables have different columns: {', '.join(first)} and {', '.join(other)}")
    for name, field in first.schema.items():
        here = other._field(name)
        if (field.shape, field.ragged) != (here.shape, here.ragged):
            raise DataError(
                f"column '{name}' is {_describe(first[name])} in one table, {_describe(other[name])} in another"
            )
        if (field.unit, field.index_of) != (here.unit, here.index_of):
            raise DataError(f"column '{name}' is in [{field.unit}] in one table, in [{here.unit}] in another")


def _array(name: str, column: ArrayLike) -> Array:
    try:
        return np.asarray(column)
    except ValueError as error:
        raise DataError(f"column '{name}' is no array ({error}); for lists use Ragged.from_lists") from None


def _common_length(columns: Mapping[str, Column]) -> int:
    lengths = {}
    for name, column in columns.items():
        if not isinstance(column, Ragged) and column.ndim == 0:
            raise DataError(f"column '{name}' is a single value, a column has one an event")
        lengths[name] = len(column)
    if len(set(lengths.values())) > 1:
        raise DataError(f"columns differ in length: {', '.join(f'{n} {k}' for n, k in lengths.items())}")
    return next(iter(lengths.values()), 0)


def _check_references(table: Table) -> None:
    for name, target in table.index_of.items():
        if target not in table:
            raise DataError(f"column '{name}' points at the items of '{target}', which is not in the table")
        table.ragged(target)
        if table.ragged(name).values.dtype.kind not in "iu":
            raise DataError(f"column '{name}' points at '{target}' and must be integers")


def _renumber(column: Ragged, name: str, old: Offsets, keep: Array, new: Offsets) -> Ragged:
    shape = (-1,) + (1,) * (column.values.ndim - 1)
    local = column.values.astype(np.int64)
    if ((local < 0) | (local >= np.diff(old)[column.events].reshape(shape))).any():
        raise DataError(f"column '{name}' points outside its event; items are counted from 0 in each")
    places = local + old[column.events].reshape(shape)
    if not keep[places].all():
        raise DataError(f"column '{name}' points at items that select would remove; drop those first")
    positions = np.cumsum(keep) - 1
    values = positions[places] - new[column.events].reshape(shape)
    return _trusted(values.astype(column.values.dtype), column.offsets)


def _ragged(column: Column, name: str) -> Ragged:
    assert isinstance(column, Ragged), name
    return column


def _sums(mask: Array, offsets: Offsets) -> Offsets:
    total = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
    return np.asarray(total[offsets[1:]] - total[offsets[:-1]])


def _not_finite(column: Column) -> Offsets:
    values = column.values if isinstance(column, Ragged) else column
    if values.dtype.kind not in "fc":
        return np.empty(0, dtype=np.int64)
    inner = tuple(range(1, values.ndim))
    rows = np.flatnonzero(~np.isfinite(values).all(axis=inner))
    if isinstance(column, Ragged):
        return np.unique(np.searchsorted(column.offsets, rows, side="right") - 1)
    return rows


def _describe(column: Column) -> str:
    if isinstance(column, Ragged):
        shape = "".join(f"[{size}]" for size in column.values.shape[1:])
        return f"ragged {column.values.dtype}{shape}"
    return f"{column.dtype}{''.join(f'[{size}]' for size in column.shape[1:])}"
