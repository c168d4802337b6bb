"""The npz reader: NumPy archives with one array per column."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.lib.npyio import NpzFile
from pydantic import Field as Setting

from clew.data.readers.base import ColumnReader, FilePiece, as_numbers, check_names, cut_evenly, make_table, open_file
from clew.data.table import Column, Table
from clew.data.table.ragged import Ragged
from clew.errors import DataError


class NpzReader(ColumnReader):
    """Settings of the npz reader. The chosen columns are read completely for every piece, because npz has no partial
    reads."""

    endings: ClassVar[tuple[str, ...]] = (".npz",)

    columns: tuple[str, ...] = ()
    """Arrays to read. By default all, without offsets."""
    offsets: dict[str, str] = {}
    """The array with the offsets of a ragged one: `{"train_x": "train_node_off"}`. `NAME` with `NAME_offsets` in the
    archive is recognised without this setting."""
    units: dict[str, str] = {}
    """Units of columns. The file does not contain them."""
    chunk: Annotated[int, Setting(ge=1)] = 100_000
    """Events per piece."""

    def pieces(self, location: str) -> list[FilePiece]:
        return cut_evenly(len(self._table(location)), self.chunk)

    def load(self, location: str, piece: FilePiece) -> Table:
        return self._table(location).slice(piece.start, piece.stop)

    def _table(self, location: str) -> Table:
        with _opened(location) as archive:
            array_names = archive.files
            chosen = self.columns_to_read(array_names, "array")
            check_names((*self.offsets, *self.offsets.values()), array_names, "array")
            pairs = {name: f"{name}_offsets" for name in array_names if f"{name}_offsets" in array_names}
            pairs |= self.offsets
            names = chosen or [name for name in array_names if name not in pairs.values()]
            offsets = {key: _array(archive, key) for key in dict.fromkeys(pairs[n] for n in names if n in pairs)}
            columns = {name: _column(archive, name, offsets, pairs.get(name)) for name in names}
            return make_table(columns, self.units)


@contextlib.contextmanager
def _opened(location: str) -> Iterator[Any]:
    with open_file(location) as stream:
        try:
            with NpzFile(stream, allow_pickle=False) as archive:
                yield archive
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
            raise DataError(f"not a readable npz archive ({error})") from error


def _array(archive: Any, name: str) -> Any:
    try:
        array = np.asarray(archive[name])
    except ValueError as error:  # objects need pickle, which may run code
        raise DataError(f"array '{name}' cannot be read ({error})") from error
    return as_numbers(array, name)


def _column(archive: Any, name: str, offsets: dict[str, Any], key: str | None) -> Column:
    values = _array(archive, name)
    if key is None:
        return np.asarray(values)
    try:
        column = Ragged(values, offsets[key])
    except DataError as error:
        raise DataError(f"array '{name}' with '{key}': {error}") from error
    offsets[key] = column.offsets  # as int64, for the next column of the same items to share
    return column
