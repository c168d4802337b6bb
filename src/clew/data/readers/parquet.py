"""Parquet: one row an event, lists become ragged columns, lists of fixed size dimensions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field as Setting

from clew.data.readers.base import Choosing, Piece, declare, even, opened
from clew.data.table import Column, Ragged, Table
from clew.data.table.ragged import Offsets
from clew.errors import DataError

_ROWS = 4096
"""Rows decoded at a time: what is held of a row group besides its compressed bytes."""


class Parquet(Choosing):
    """Settings of the Parquet reader.

    A piece decodes the row groups it touches from their beginning up to its end: files with row groups much larger
    than `chunk` are read faster with a larger one.
    """

    endings: ClassVar[tuple[str, ...]] = (".parquet",)

    columns: tuple[str, ...] = ()
    """Columns to read (default: all that are numbers, arrays of fixed size, or lists of either)."""
    units: dict[str, str] = {}
    """Units of columns; the file does not say."""
    chunk: Annotated[int, Setting(ge=1)] = 20_000
    """Events in a piece."""

    def pieces(self, location: str) -> list[Piece]:
        with _opened(location) as file:
            return even(file.metadata.num_rows, self.chunk)

    def load(self, location: str, piece: Piece) -> Table:
        with _opened(location) as file:
            names = self._names(file.schema_arrow)
            rows = _rows(file, piece, names)
            sets = _item_sets(file)
        shared: dict[str, Offsets] = {}
        columns = {name: _column(rows[name], name, sets.get(name, name), shared, piece.start) for name in names}
        return declare(columns, self.units)

    def _names(self, schema: Any) -> list[str]:
        chosen = self.chosen(schema.names, "column")
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

    with opened(location) as stream:
        try:
            yield parquet.ParquetFile(stream)
        except (ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"not a readable Parquet file ({error})") from error


def _rows(file: Any, piece: Piece, names: list[str]) -> Any:
    """Rows of a piece, from the row groups it touches and no others."""
    from pyarrow import Table as ArrowTable

    ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)])
    first, last = np.searchsorted(ends, [piece.start, piece.stop - 1], side="right")
    place = int(ends[first - 1]) if first else 0
    taken = []
    groups = list(range(int(first), int(last) + 1))
    if piece == (place, ends[last]):  # whole row groups need not be cut
        return file.read_row_groups(groups, columns=names, use_threads=False).combine_chunks()
    for batch in file.iter_batches(_ROWS, row_groups=groups, columns=names, use_threads=False):
        begin, place = place, place + batch.num_rows
        if place > piece.start:
            start = max(piece.start - begin, 0)
            taken.append(batch.slice(start, piece.stop - begin - start))
        if place >= piece.stop:
            break
    return ArrowTable.from_batches(taken).combine_chunks()


def _item_sets(file: Any) -> dict[str, str]:
    """For each list the first with as many items, and as many empty lists, in every row group: lists of the same items.

    The file says so little about lists that this must do; that different items agree in every row group is a chance
    only in files of a few events.
    """
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    counts: dict[str, tuple[tuple[int, int], ...]] = {}
    for index in range(file.metadata.num_columns):
        name = file.schema.column(index).path.partition(".")[0]
        counts[name] = tuple(_counts(group.column(index)) for group in groups)
    first: dict[tuple[tuple[int, int], ...], str] = {}
    lists = [field.name for field in file.schema_arrow if _is_list(field.type) and _usable(field.type)]
    return {name: first.setdefault(counts[name], name) for name in lists}


def _counts(chunk: Any) -> tuple[int, int]:
    """Items and empty lists together, and where the file says so the empty lists alone."""
    known = chunk.is_stats_set and chunk.statistics.has_null_count
    return chunk.num_values, chunk.statistics.null_count if known else 0


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


def _column(column: Any, name: str, items: str, shared: dict[str, Offsets], first: int) -> Column:
    from pyarrow import types

    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    _check_filled(array, name, first)
    if types.is_fixed_size_list(array.type):
        return _values(array, name, first)
    if not _is_list(array.type):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    offsets = array.offsets.to_numpy().astype(np.int64)
    offsets -= offsets[0]
    like = shared.setdefault(items, offsets)
    return Ragged(_values(array, name, first), like if np.array_equal(like, offsets) else offsets)


def _values(lists: Any, name: str, first: int) -> NDArray[Any]:
    """All items of all lists; those of fixed size are dimensions."""
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
