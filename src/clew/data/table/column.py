"""Functions of single columns: their length, description, and selection of items."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from clew.data.table.ragged import Array, Offsets, Ragged, _trusted
from clew.errors import DataError, list_names

Column: TypeAlias = "Array | Ragged"
"""A column of a table: an array with one entry per event, or a ragged column."""


def as_column(name: str, column: ArrayLike) -> Array:
    try:
        return np.asarray(column)
    except ValueError as error:
        raise DataError(f"column '{name}' is not an array ({error}); for lists use Ragged.from_lists") from None


def common_length(columns: Mapping[str, Column]) -> int:
    lengths = {}
    for name, column in columns.items():
        if not isinstance(column, Ragged) and column.ndim == 0:
            raise DataError(f"column '{name}' is a single value; a column has one value per event")
        lengths[name] = len(column)
    if len(set(lengths.values())) > 1:
        raise DataError(f"columns differ in length: {list_names(f'{n} {k}' for n, k in lengths.items())}")
    return next(iter(lengths.values()), 0)


def renumber(column: Column, name: str, old: Offsets, keep: Array, new: Offsets) -> Ragged:
    assert isinstance(column, Ragged)
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


def count_true(mask: Array, offsets: Offsets) -> Offsets:
    total = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
    return np.asarray(total[offsets[1:]] - total[offsets[:-1]])


def events_not_finite(column: Column) -> Offsets:
    """Return the numbers of the events with NaN or infinity. Call it where NumPy ignores overflows."""
    values = column.values if isinstance(column, Ragged) else column
    if values.dtype.kind not in "fc":
        return np.empty(0, dtype=np.int64)
    if math.isfinite(
        abs(np.add.reduce(values, axis=None))
    ):  # a sum with NaN or infinity is not finite; this is faster than all values
        return np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
    if isinstance(column, Ragged):
        return np.unique(np.searchsorted(column.offsets, rows, side="right") - 1)
    return rows


def different_items(first: str, like: Ragged, name: str, column: Ragged) -> str:
    """Return why two ragged columns cannot be combined, and what to do, as the text of an error."""
    text = f"'{first}' and '{name}' do not describe the same items"
    if not np.array_equal(like.lengths, column.lengths):
        event = int(np.argmax(like.lengths != column.lengths))
        return f"{text}: event {event} has {like.lengths[event]} and {column.lengths[event]} items"
    return f"{text}; if they do, add the transform same_items for them, or declare them in the reader's items"


def describe_column(column: Column) -> str:
    if isinstance(column, Ragged):
        shape = "".join(f"[{size}]" for size in column.values.shape[1:])
        return f"ragged {column.values.dtype}{shape}"
    return f"{column.dtype}{''.join(f'[{size}]' for size in column.shape[1:])}"
