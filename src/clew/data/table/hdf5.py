"""Tables in HDF5 files. Values are in the group `columns`, offsets (once per set of items) in `offsets`, and the rest
in
attributes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from clew.core.files import atomic_path
from clew.core.format_version import check_format_version
from clew.data.table.column import Column
from clew.data.table.ragged import Array, Offsets, Ragged, _trusted
from clew.data.table.table import Table
from clew.errors import DataError, nearest

FORMAT = 1
"""Version of tables. It changes when an older clew could not read a new file."""
_BLOCK = 1 << 16
"""Bytes by which a column of unknown length grows on disk."""


def save(table: Table, path: Path) -> None:
    """Write a table to an HDF5 file, completely or not at all."""
    with atomic_path(path) as temporary, h5py.File(temporary, "w") as file:
        write(table, file)


def load(path: Path, *, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None) -> Table:
    """Read a table, or a part of it, from an HDF5 file.

    Args:
        path: The file.
        start: The first event to read.
        stop: The end of the range of events. None reads to the last event.
        columns: The columns to read. None reads all.

    Raises:
        DataError: the file is missing, damaged, not HDF5, or does not contain a table.
    """
    try:
        with h5py.File(path, "r") as file:
            return read(file, start=start, stop=stop, columns=columns)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:  # what h5py makes of a damaged file
        raise DataError(f"{path}: not a readable HDF5 table ({error})") from error


def write(table: Table, group: h5py.Group) -> None:
    """Write a table to an empty HDF5 group. The bytes depend on the table only."""
    totals = {name: len(_values(table, name)) for name in table}
    appender = Appender(group, table, events=len(table), items=totals)
    appender.append(table)


class Appender:
    """Writes a table to an HDF5 group part by part, so that only one part is in memory.

    Args:
        group: An empty HDF5 group.
        like: A table with the same columns.
        events: Number of events at the end. None if it is not known; the table then grows on disk with every part.
        items: Number of rows of each column at the end. None if it is not known.
    """

    def __init__(
        self, group: h5py.Group, like: Table, *, events: int | None = None, items: Mapping[str, int] | None = None
    ) -> None:
        group.attrs["clew_table"] = FORMAT
        group.attrs["events"] = events or 0
        self._sets = item_sets(like)
        # one attribute for all facts of all columns: HDF5 is slow with many small ones
        group.attrs["columns"] = json.dumps({name: _facts(like, self._sets, name) for name in like})
        self._group, self._grows = group, items is None
        self._columns, self._offsets = group.create_group("columns"), group.create_group("offsets")
        self._filled = dict.fromkeys(like, 0)
        self._events = 0
        for name in like:
            values = _values(like, name)
            if self._sets.get(name) == name:
                self._create(self._offsets, name, (events or 0) + 1, np.empty(0, np.int64))
                self._offsets[name][0] = 0
            self._create(self._columns, name, 0 if items is None else items[name], values)

    def append(self, table: Table) -> None:
        """Write the next events.

        Raises:
            DataError: the columns differ from those of the first table.
        """
        if list(table) != list(self._filled) or item_sets(table) != self._sets:
            raise DataError(f"pieces of one table differ in their columns: {', '.join(table)}")
        for name, column in table.items():
            values, first = _values(table, name), self._filled[name]
            self._put(self._columns[name], first, values)
            self._filled[name] = first + len(values)
            if isinstance(column, Ragged) and self._sets[name] == name:
                self._put(self._offsets[name], self._events + 1, column.offsets[1:] + first)
        self._events += len(table)
        if self._grows:
            self._group.attrs["events"] = self._events

    def reserve(self) -> dict[str, int]:
        """Reserve the space of all values before the first one is written. Other processes can then write them.

        Returns:
            The first byte in the file of each array, `columns/NAME` and `offsets/NAME`. Empty arrays have none.
        """
        arrays = {f"offsets/{name}": self._offsets[name] for name, owner in self._sets.items() if name == owner}
        for name in self._filled:
            column = arrays[f"columns/{name}"] = self._columns[name]
            if column.size:
                column[:1] = np.zeros((1, *column.shape[1:]), column.dtype)  # HDF5 reserves all with the first value
        return {name: array.id.get_offset() for name, array in arrays.items() if array.size}

    def _create(self, group: h5py.Group, name: str, rows: int, like: Array) -> None:
        shape, inner = (rows, *like.shape[1:]), math.prod(like.shape[1:]) * like.dtype.itemsize
        block = (max(1, _BLOCK // max(inner, 1)), *like.shape[1:])
        growing = {"maxshape": (None, *like.shape[1:]), "chunks": block} if self._grows and 0 not in block else {}
        group.create_dataset(name, shape, like.dtype, **growing)

    def _put(self, dataset: h5py.Dataset, first: int, values: Array) -> None:
        if self._grows:
            dataset.resize(first + len(values), axis=0)
        dataset[first : first + len(values)] = values


def _facts(table: Table, sets: Mapping[str, str], name: str) -> dict[str, str]:
    facts = {"offsets": sets.get(name), "unit": table.units.get(name), "index_of": table.index_of.get(name)}
    return {key: value for key, value in facts.items() if value}


def item_sets(table: Table) -> dict[str, str]:
    """Return for every ragged column the first one that shares its offsets array: the name of that set of items."""
    first: dict[int, str] = {}
    return {n: first.setdefault(id(c.offsets), n) for n, c in table.items() if isinstance(c, Ragged)}


def _values(table: Table, name: str) -> Array:
    column = table[name]
    return column.values if isinstance(column, Ragged) else column


def read(group: h5py.Group, *, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None) -> Table:
    """Read a range of events and some columns of a table from an HDF5 group. Only the necessary bytes are read.

    Args:
        group: A group that `write` or an `Appender` filled.
        start: The first event to read.
        stop: The end of the range of events. None reads to the last event.
        columns: The columns to read. None reads all.

    Raises:
        DataError: the group does not contain a table, or a column does not exist.
    """
    version = group.attrs.get("clew_table")
    if isinstance(version, np.integer):
        check_format_version(group.file.filename, int(version), FORMAT, DataError)
    if version != FORMAT:
        raise DataError(f"{group.file.filename}: no clew table in it (format {FORMAT})")
    first, last, _ = slice(start, stop).indices(int(group.attrs["events"]))
    facts: dict[str, dict[str, str]] = json.loads(group.attrs["columns"])
    names = list(facts) if columns is None else list(columns)
    windows: dict[str, Offsets] = {}
    data: dict[str, Column] = {}
    for name in names:
        if name not in facts:
            raise DataError(f"{group.file.filename}: no column '{name}'{nearest(name, facts)}")
        data[name] = _read_column(group, name, facts[name].get("offsets"), (first, max(first, last)), windows)
    units = {name: facts[name]["unit"] for name in names if "unit" in facts[name]}
    targets = {n: _stand_in(facts, facts[n]["index_of"], data) for n in names if "index_of" in facts[n]}
    return Table(data, units=units, index_of={name: of for name, of in targets.items() if of})


def _stand_in(facts: Mapping[str, Mapping[str, str]], of: str, data: Mapping[str, Column]) -> str:
    """Return `of` or, if it was not read, another column of the same items, or an empty text."""
    items = facts[of]["offsets"]
    return of if of in data else next((name for name in data if facts[name].get("offsets") == items), "")


def _read_column(
    group: h5py.Group, name: str, key: str | None, rows: tuple[int, int], windows: dict[str, Offsets]
) -> Column:
    first, last = rows
    dataset = group["columns"][name]
    if key is None:
        return np.asarray(dataset[first:last])
    if key not in windows:
        windows[key] = np.asarray(group["offsets"][key][first : last + 1], dtype=np.int64)
        if last == first:
            windows[key] = windows[key][:1]
    window = windows[key]
    values = np.asarray(dataset[int(window[0]) : int(window[-1])])
    rebased = windows.setdefault(f"{key}\0", window - window[0])
    return _trusted(values, rebased)
