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
    fields = []
    for column in table.values():
        if isinstance(column, Ragged):
            offsets = ak.index.Index64(column.offsets)
            fields.append(ak.contents.ListOffsetArray(offsets, ak.from_numpy(column.values, highlevel=False)))
        else:
            plain = column.dtype.kind in "fiub" and column.flags.c_contiguous  # the usual case, and faster
            fields.append(ak.contents.NumpyArray(column) if plain else ak.from_numpy(column, highlevel=False))
    return ak.Array(ak.contents.RecordArray(fields, list(table), length=len(table)))


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


def _named_fields(array: Any, names: Sequence[str] | None = None) -> dict[str, tuple[str | None, Any]]:
    """Return the columns that an array has: by name the record that holds it, if any, and the field.

    A field that holds records is one column per field of the records, with the name `record_field`.

    Args:
        array: The array.
        names: Only columns with these names are needed; others may be missing in the result. Default: all.
    """
    columns: dict[str, tuple[str | None, Any]] = {}
    layout = ak.to_layout(array)  # of arrays with behaviours, an access by name may compute something or fail
    needed = None if names is None else {start for name in names for start in _starts(name)}
    is_record = isinstance(layout, ak.contents.RecordArray)
    for place, name in enumerate(layout.fields):
        if needed is not None and name not in needed:
            continue
        field = layout.contents[place] if is_record else layout[name]
        if is_record and field.length != layout.length:  # a field may be longer than the records
            field = field[: layout.length]
        inner = {} if isinstance(field, ak.contents.NumpyArray) else {each: f"{name}_{each}" for each in field.fields}
        if inner:
            chosen = {each: title for each, title in inner.items() if names is None or title in names}
            columns |= {title: (name, field[each]) for each, title in chosen.items()}
        else:
            columns[name] = (None, field)
    return columns


def _starts(name: str) -> list[str]:
    """Return the fields that may hold a column: `Jet_btag_up` is a field, or in `Jet_btag` or `Jet`."""
    words = name.split("_")
    if len(words) == 1:
        return words
    return ["_".join(words[:count]) for count in range(1, len(words) + 1)]


def from_awkward(array: Any, columns: Sequence[str] | None = None, *, missing: bool = False) -> Table:
    """Return a record array as a table.

    Args:
        array: Its fields are flat, regular, lists of one level, or records of these.
        columns: The columns to convert. Default: all.
        missing: Whether `columns` may be missing in the array. They are then left out.

    Raises:
        DataError: a field is nested deeper, or holds options or strings; or there is no such column.
    """
    if not (array.fields if isinstance(array, ak.Array) else ak.fields(array)):
        raise DataError("an awkward array becomes a table only when it has named fields")
    fields = _named_fields(array, columns)
    for name in columns or ():
        if name not in fields and not missing:
            raise DataError(f"no field '{name}' in the awkward array{nearest(name, _named_fields(array))}")
    shared: dict[Hashable, Any] = {}
    result: dict[str, Column] = {}
    for name in fields if columns is None else [name for name in columns if name in fields]:
        record, field = fields[name]
        try:
            result[name] = _column(field, record, shared)
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(f"field '{name}' of type {ak.type(field)} is not a table column") from error
    return Table(result)


def _column(field: Any, record: str | None, shared: dict[Hashable, Any]) -> Column:
    """Return a field as a column. Lists in one record are the same items; other lists if their lengths are equal."""
    if isinstance(field, ak.contents.NumpyArray) and not field.parameters:
        values = field.data
        if isinstance(values, np.ndarray) and values.flags.c_contiguous:  # the usual case, and much faster
            return values
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
