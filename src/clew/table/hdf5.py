"""Tables in HDF5: values in `columns/`, offsets once per set of items in `offsets/`, facts in attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from clew.errors import DataError, nearest
from clew.files import atomic
from clew.table.ragged import Offsets, Ragged, _trusted
from clew.table.table import Column, Table

FORMAT = 1


def save(table: Table, path: Path) -> None:
    """Write a table as an HDF5 file, under a temporary name first."""
    with atomic(path) as temporary, h5py.File(temporary, "w") as file:
        write(table, file)


def load(path: Path, *, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None) -> Table:
    """Read (part of) a table file.

    Raises:
        DataError: the file is missing, not HDF5, cut short, or holds no table.
    """
    try:
        with h5py.File(path, "r") as file:
            return read(file, start=start, stop=stop, columns=columns)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, KeyError) as error:
        raise DataError(f"{path}: not a readable HDF5 table ({error})") from error


def write(table: Table, group: h5py.Group) -> None:
    """Write a table into an empty HDF5 group. The bytes depend on the table alone."""
    group.attrs["clew_table"] = FORMAT
    group.attrs["events"] = len(table)
    group.attrs["order"] = json.dumps(list(table))
    columns, offsets = group.create_group("columns"), group.create_group("offsets")
    written: dict[int, str] = {}
    for name, column in table.items():
        if isinstance(column, Ragged):
            if id(column.offsets) not in written:
                written[id(column.offsets)] = name
                offsets.create_dataset(name, data=column.offsets)
            dataset = columns.create_dataset(name, data=column.values)
            dataset.attrs["offsets"] = written[id(column.offsets)]
        else:
            dataset = columns.create_dataset(name, data=column)
        for key, facts in (("unit", table.units), ("index_of", table.index_of)):
            if name in facts:
                dataset.attrs[key] = facts[name]


def read(group: h5py.Group, *, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None) -> Table:
    """Read events start to stop of a table, only these columns, touching only those bytes.

    Raises:
        DataError: the group holds no table, or not that column.
    """
    if group.attrs.get("clew_table") != FORMAT:
        raise DataError(f"{group.file.filename}: no clew table in it (format {FORMAT})")
    first, last, _ = slice(start, stop).indices(int(group.attrs["events"]))
    names = json.loads(group.attrs["order"]) if columns is None else list(columns)
    windows: dict[str, Offsets] = {}
    data: dict[str, Column] = {}
    facts: dict[str, dict[str, str]] = {"unit": {}, "index_of": {}}
    for name in names:
        if name not in group["columns"]:
            raise DataError(f"{group.file.filename}: no column '{name}'{nearest(name, group['columns'])}")
        dataset = group["columns"][name]
        data[name] = _read_column(group, dataset, first, max(first, last), windows)
        for key in facts:
            if key in dataset.attrs:
                facts[key][name] = str(dataset.attrs[key])
    targets = {name: _stand_in(group["columns"], of, data) for name, of in facts["index_of"].items()}
    return Table(data, units=facts["unit"], index_of={name: of for name, of in targets.items() if of})


def _stand_in(columns: h5py.Group, of: str, data: Mapping[str, Column]) -> str:
    """`of`, or where it was not read a column of the same items that was, or nothing."""
    items = columns[of].attrs["offsets"]
    return of if of in data else next((name for name in data if columns[name].attrs.get("offsets") == items), "")


def _read_column(group: h5py.Group, dataset: Any, first: int, last: int, windows: dict[str, Offsets]) -> Column:
    key = dataset.attrs.get("offsets")
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
