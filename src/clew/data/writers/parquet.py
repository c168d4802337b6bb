"""Parquet files: one row per event and one row group per table. Ragged columns are lists; units are metadata of the
fields."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.data.table import Column, Ragged, Table
from clew.data.table.ragged import Array, Offsets
from clew.data.writers.base import TableWriter

_SMALL = np.iinfo(np.int32).max


class ParquetWriter(TableWriter):
    """Writes a file of row groups, compressed with snappy."""

    _file: Any = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _begin(self, like: Table) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        arrays = {name: _column(column) for name, column in like.slice(0, 0).items()}
        units = {name: {"unit": unit} for name, unit in like.units.items()}
        self._fields = pa.schema(
            [pa.field(name, array.type, nullable=False, metadata=units.get(name)) for name, array in arrays.items()]
        )
        self._file = parquet.ParquetWriter(str(self.path), self._fields)

    def _write(self, table: Table) -> None:
        import pyarrow as pa

        if not len(table):
            return
        arrays = [_column(column) for column in table.values()]
        self._file.write_table(pa.Table.from_arrays(arrays, schema=self._fields), row_group_size=len(table))


def _column(column: Column) -> Any:
    import pyarrow as pa

    if not isinstance(column, Ragged):
        return _nested(column)
    return pa.ListArray.from_arrays(pa.array(_narrow(column.offsets)), _nested(column.values))


def _narrow(offsets: Offsets) -> Array:
    """Return 32-bit offsets, which Parquet needs: up to two thousand million items per row group, far above the size of
    a
    piece."""
    assert offsets[-1] <= _SMALL
    return offsets.astype(np.int32)


def _nested(values: Array) -> Any:
    """Return rows of numbers as lists of fixed size, one level for each dimension."""
    import pyarrow as pa

    array = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
