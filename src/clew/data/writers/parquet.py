"""Parquet: one row an event, a row group a table; ragged columns are lists, units are in the fields' metadata."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.data.table import Column, Ragged, Table
from clew.data.table.ragged import Array, Offsets
from clew.data.writers.base import Writer

_SMALL = np.iinfo(np.int32).max


class Parquet(Writer):
    """A file of row groups, compressed by snappy."""

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
            [pa.field(name, each.type, nullable=False, metadata=units.get(name)) for name, each in arrays.items()]
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
    """A list of a row group counts in 32 bits: two thousand million items, far above any piece of bounded size."""
    assert offsets[-1] <= _SMALL
    return offsets.astype(np.int32)


def _nested(values: Array) -> Any:
    """Rows of numbers as lists of fixed size, one level for each dimension."""
    import pyarrow as pa

    found = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(values.shape[1:]):
        found = pa.FixedSizeListArray.from_arrays(found, size)
    return found
