"""Conversion of tables to and from awkward arrays."""

from __future__ import annotations

from typing import Any

import awkward as ak
import numpy as np

from clew.data.table.column import Column
from clew.data.table.ragged import Array, Ragged
from clew.data.table.table import Table
from clew.errors import DataError


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


def from_awkward(array: Any) -> Table:
    """Return a record array as a table.

    Args:
        array: Its fields are flat, regular, or lists of one level.

    Raises:
        DataError: a field is nested deeper, or holds options, strings or records.
    """
    if not ak.fields(array):
        raise DataError("an awkward array becomes a table only when it has named fields")
    shared: dict[bytes, Any] = {}
    columns: dict[str, Column] = {}
    for name in ak.fields(array):
        try:
            columns[name] = _column(array[name], shared)
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(f"field '{name}' of type {array[name].type} is not a table column") from error
    return Table(columns)


def _column(field: Any, shared: dict[bytes, Any]) -> Column:
    packed = ak.to_packed(field, highlevel=False)
    if not packed.is_list or packed.is_regular:
        return _numbers(packed)
    packed = packed.to_ListOffsetArray64(True)
    offsets = np.asarray(packed.offsets.data, dtype=np.int64)
    offsets = shared.setdefault(offsets.tobytes(), offsets)
    return Ragged(_numbers(packed.content), offsets)


def _numbers(layout: Any) -> Array:
    """Return an array of numbers. Strings, records and lists that have one length by chance are not accepted."""
    inner = layout
    while not inner.is_numpy and (inner.is_regular or inner.is_option or inner.is_indexed):
        inner = inner.content
    if not (inner.is_numpy or inner.is_unknown) or inner.parameter("__array__"):
        raise TypeError(f"{layout.form.type} is not numbers of one shape")
    return np.asarray(ak.to_numpy(layout, allow_missing=False))
