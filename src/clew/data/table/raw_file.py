"""Tables as plain bytes: a header in JSON, then all arrays. For caches that many small tables are written to and read
from: HDF5 takes longer for its own bookkeeping than for the values of such a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.data.table.column import Column
from clew.data.table.hdf5 import item_sets
from clew.data.table.ragged import Array, Ragged, _trusted
from clew.data.table.table import Table
from clew.errors import DataError

_MARK = b"clewraw1"
_ALIGNMENT = 64
_KINDS = "biufcS"
"""Kinds of NumPy types that are bytes and nothing else."""


def to_bytes(table: Table, facts: Mapping[str, Any]) -> bytearray:
    """Return a table as bytes, which depend on the arguments only.

    Args:
        table: The table.
        facts: JSON data that is stored with it.

    Raises:
        DataError: a column holds no numbers.
    """
    sets = item_sets(table)
    arrays: dict[str, Array] = {}
    for name, column in table.items():
        values = column.values if isinstance(column, Ragged) else column
        if values.dtype.kind not in _KINDS:
            raise DataError(f"column '{name}' has the type {values.dtype}, which cannot be stored; use numbers")
        arrays[f"columns/{name}"] = values
        if isinstance(column, Ragged) and sets[name] == name:
            arrays[f"offsets/{name}"] = column.offsets
    places, end = {}, 0
    for name, array in arrays.items():
        places[name] = (end, array.dtype.str, array.shape)
        end += _padded(array.nbytes)
    about = {"arrays": places, "sets": sets, "columns": list(table), "units": dict(table.units)}
    header = json.dumps({**about, "index_of": dict(table.index_of), "facts": facts}).encode()
    start = _padded(len(_MARK) + 8 + len(header))
    image = bytearray(start + end)
    image[: len(_MARK) + 8 + len(header)] = _MARK + len(header).to_bytes(8, "little") + header
    for name, array in arrays.items():
        first = start + places[name][0]
        image[first : first + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return image


def from_bytes(image: NDArray[np.uint8]) -> tuple[Table, dict[str, Any]]:
    """Return the table and the facts of `to_bytes`. The arrays are views of the bytes.

    Raises:
        ValueError, KeyError, TypeError: the bytes are damaged.
    """
    first = len(_MARK) + 8
    if image[: len(_MARK)].tobytes() != _MARK:
        raise ValueError("these bytes are no table")
    end = first + int.from_bytes(image[len(_MARK) : first].tobytes(), "little")
    header = json.loads(image[first:end].tobytes())
    start = _padded(end)
    arrays = {name: _view(image, start + place[0], *place[1:]) for name, place in header["arrays"].items()}
    columns: dict[str, Column] = {}
    for name in header["columns"]:
        values, items = arrays[f"columns/{name}"], header["sets"].get(name)
        columns[name] = values if items is None else _trusted(values, arrays[f"offsets/{items}"])
    return Table(columns, units=header["units"], index_of=header["index_of"]), header["facts"]


def _view(image: NDArray[np.uint8], start: int, dtype: str, shape: list[int]) -> Array:
    kind = np.dtype(dtype)
    size = kind.itemsize * int(np.prod(shape, dtype=np.int64))
    return image[start : start + size].view(kind).reshape(shape)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
