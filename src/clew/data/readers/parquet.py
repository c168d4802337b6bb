"""The Parquet reader: one row per event. Lists become ragged columns; lists of fixed size become dimensions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from clew.data.readers.base import ColumnReader, FilePiece, cut_evenly, make_table, open_file
from clew.data.readers.items import ItemCounts
from clew.data.table import Column, Ragged, Table
from clew.errors import DataError

_ROWS = 4096
"""Rows that are decoded at a time. Besides them, only compressed bytes of a row group are in memory."""


class ParquetReader(ColumnReader):
    """Settings of the Parquet reader.

    A piece decodes the row groups that it touches from their beginning to its end. Files with row groups much larger
    than `chunk` are read faster with a larger value.
    """

    endings: ClassVar[tuple[str, ...]] = (".parquet",)

    columns: tuple[str, ...] = ()
    """Columns to read. By default all columns of numbers, of arrays of fixed size, or of lists of either."""
    units: dict[str, str] = {}
    """Units of columns. The file does not contain them."""
    chunk: Annotated[int, Setting(ge=1)] = 20_000
    """Events per piece."""

    def pieces(self, location: str) -> list[FilePiece]:
        with _opened(location) as file:
            return cut_evenly(file.metadata.num_rows, self.chunk)

    def load(self, location: str, piece: FilePiece) -> Table:
        with _opened(location) as file:
            names = self._names(file.schema_arrow)
            rows = _rows(file, piece, names)
        return make_table({name: _column(rows[name], name, piece.start) for name in names}, self.units)

    def item_counts(self, location: str, piece: FilePiece) -> ItemCounts:
        with _opened(location) as file:
            names = [name for name in self._names(file.schema_arrow) if _is_list(file.schema_arrow.field(name).type)]
            if not names:
                return ItemCounts.of({}, {})
            rows = _rows(file, piece, names)
        lengths = {name: _array(rows[name]).value_lengths().fill_null(0).to_numpy() for name in names}
        return ItemCounts.of(lengths, {name: name for name in names})

    def _names(self, schema: Any) -> list[str]:
        chosen = self.columns_to_read(schema.names, "column")
        for name in chosen:
            kind = schema.field(name).type
            if not _usable(kind):
                raise DataError(f"column '{name}' holds {kind}; only numbers and lists of numbers can be read")
        names = chosen or [field.name for field in schema if _usable(field.type)]
        if not names:
            raise DataError("no column of numbers in it")
        return names


@contextlib.contextmanager
def _opened(location: str) -> Iterator[Any]:
    from pyarrow import ArrowException, parquet

    with open_file(location) as stream:
        try:
            yield parquet.ParquetFile(stream)
        except (ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"not a readable Parquet file ({error})") from error


def _rows(file: Any, piece: FilePiece, names: list[str]) -> Any:
    """Return the rows of a piece. Only the row groups that it touches are read."""
    from pyarrow import Table as ArrowTable

    ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)])
    first, last = np.searchsorted(ends, [piece.start, piece.stop - 1], side="right")
    place = int(ends[first - 1]) if first else 0
    batches = []
    groups = list(range(int(first), int(last) + 1))
    if piece == (place, ends[last]):  # whole row groups need not be cut
        return file.read_row_groups(groups, columns=names, use_threads=False).combine_chunks()
    for batch in file.iter_batches(_ROWS, row_groups=groups, columns=names, use_threads=False):
        begin, place = place, place + batch.num_rows
        if place > piece.start:
            start = max(piece.start - begin, 0)
            batches.append(batch.slice(start, piece.stop - begin - start))
        if place >= piece.stop:
            break
    return ArrowTable.from_batches(batches).combine_chunks()


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind))


def _usable(kind: Any) -> bool:
    from pyarrow import types

    if _is_list(kind):
        kind = kind.value_type
    while types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _array(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _column(column: Any, name: str, first: int) -> Column:
    from pyarrow import types

    array = _array(column)
    _check_filled(array, name, first)
    if types.is_fixed_size_list(array.type):
        return _values(array, name, first)
    if not _is_list(array.type):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    offsets = array.offsets.to_numpy().astype(np.int64)
    return Ragged(_values(array, name, first), offsets - offsets[0])


def _values(lists: Any, name: str, first: int) -> NDArray[Any]:
    """Return all items of all lists. Lists of fixed size become dimensions."""
    from pyarrow import types

    inner, shape = lists, list[int]()
    while _is_list(inner.type) or types.is_fixed_size_list(inner.type):
        shape += [inner.type.list_size] if types.is_fixed_size_list(inner.type) else []
        inner = inner.flatten()
        if inner.null_count:
            place = int(np.argmax(inner.is_null().to_numpy(zero_copy_only=False))) // int(np.prod(shape, dtype=int))
            event = first + (lists.value_parent_indices()[place].as_py() if _is_list(lists.type) else place)
            raise DataError(
                f"column '{name}' has {inner.null_count} empty entries in its lists, first in event {event}"
            )
    return np.asarray(inner.to_numpy(zero_copy_only=False)).reshape(-1, *shape)


def _check_filled(array: Any, name: str, first: int) -> None:
    if array.null_count:
        event = first + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(f"column '{name}' has {array.null_count} empty entries, first in event {event}")
