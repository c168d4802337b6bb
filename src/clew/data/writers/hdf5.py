"""HDF5 files that contain a clew table. `Table.load` and `clew prepare` read them with units and shared offsets."""

from __future__ import annotations

import h5py

from clew.data.table import Table
from clew.data.table.hdf5 import Appender
from clew.data.writers.base import TableWriter


class Hdf5Writer(TableWriter):
    """Writes one group of columns, which grows with every table."""

    _file: h5py.File | None = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _begin(self, like: Table) -> None:
        self._file = h5py.File(self.path, "w")
        self._appender = Appender(self._file, like)

    def _write(self, table: Table) -> None:
        self._appender.append(table)
