"""Conversion of tables to and from awkward arrays and Arrow."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import awkward as ak
import numpy as np

from clew.data.table.column import Column
from clew.data.table.ragged import Array, Ragged
from clew.data.table.table import Table
from clew.errors import DataError, nearest


def to_awkward(table: Table) -> ak.Array:
    """Return a table as a record array with one field per column. Values are shared, not copied. Units are lost."""
    fields = {}
    for name, column in table.items():
        if isinstance(column, Ragged):
            offsets = ak.index.Index64(column.offsets)
            fields[name] = ak.Array(ak.contents.ListOffsetArray(offsets, ak.from_numpy(column.values, highlevel=False)))
        else:
            fields[name] = ak.from_numpy(column)
    return ak.Array(fields) if fields else ak.Array(ak.contents.RecordArray([], [], length=0))


def to_arrow(table: Table) -> Any:
    """Return a table of Arrow. Values are shared, not copied, except those of booleans. Units are lost."""
    import pyarrow

    arrays = to_awkward(table)
    return pyarrow.table({name: ak.to_arrow(arrays[name], extensionarray=False) for name in table})


def from_arrow(arrow: Any) -> Table:
    """Return a table from a table of Arrow.

    Raises:
        DataError: a column holds no numbers or lists of numbers, or has empty entries.
    """
    return from_awkward(ak.from_arrow(arrow))


def column_paths(array: Any) -> dict[str, tuple[str, ...]]:
    """Return the columns that an array has: the path of fields of each, by name.

    A field that holds records is one column per field of the records, with the name `record_field`.
    """
    paths: dict[str, tuple[str, ...]] = {}
    layout = ak.to_layout(array)  # of arrays with behaviours, an access by name may compute something or fail
    for name in layout.fields:
        inner = layout[name].fields
        if inner:
            paths |= {f"{name}_{each}": (name, each) for each in inner}
        else:
            paths[name] = (name,)
    return paths


def from_awkward(array: Any, columns: Sequence[str] | None = None) -> Table:
    """Return a record array as a table.

    Args:
        array: Its fields are flat, regular, lists of one level, or records of these.
        columns: The columns to convert. Default: all.

    Raises:
        DataError: a field is nested deeper, or holds options or strings; or there is no such column.
    """
    if not ak.fields(array):
        raise DataError("an awkward array becomes a table only when it has named fields")
    paths, layout = column_paths(array), ak.to_layout(array)
    for name in columns or ():
        if name not in paths:
            raise DataError(f"no field '{name}' in the awkward array{nearest(name, paths)}")
    shared: dict[Hashable, Any] = {}
    result: dict[str, Column] = {}
    for name in paths if columns is None else columns:
        path = paths[name]
        field = layout[path[0]] if len(path) == 1 else layout[path[0]][path[1]]
        try:
            result[name] = _column(field, path[0] if len(path) > 1 else None, shared)
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(f"field '{name}' of type {ak.type(field)} is not a table column") from error
    return Table(result)


def _column(field: Any, record: str | None, shared: dict[Hashable, Any]) -> Column:
    """Return a field as a column. Lists in one record are the same items; other lists if their lengths are equal."""
    packed = ak.to_packed(field, highlevel=False)
    if packed.is_option and packed.content.is_list:  # Arrow marks lists that may be missing
        if ak.any(ak.is_none(packed)):
            raise ValueError("a list is missing")
        packed = (
            packed.content
            if isinstance(packed, ak.contents.UnmaskedArray)
            else ak.drop_none(packed, axis=0, highlevel=False)
        )
    if not packed.is_list or packed.is_regular:
        return _numbers(packed)
    packed = packed.to_ListOffsetArray64(True)
    offsets = np.asarray(packed.offsets.data, dtype=np.int64)
    offsets = shared.setdefault(record or offsets.tobytes(), offsets)
    return Ragged(_numbers(packed.content), offsets)


def _numbers(layout: Any) -> Array:
    """Return an array of numbers. Strings, records and lists that have one length by chance are not accepted."""
    inner = layout
    while not inner.is_numpy and (inner.is_regular or inner.is_option or inner.is_indexed):
        inner = inner.content
    if not (inner.is_numpy or inner.is_unknown) or inner.parameter("__array__"):
        raise TypeError(f"{layout.form.type} is not numbers of one shape")
    return np.asarray(ak.to_numpy(layout, allow_missing=False))
