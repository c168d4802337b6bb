"""NumPy archives: one array a column."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.lib.npyio import NpzFile
from pydantic import Field as Setting

from clew.data.readers.base import Choosing, Piece, check_known, declare, even, numbers, opened
from clew.data.table import Column, Table
from clew.data.table.ragged import Ragged
from clew.errors import DataError


class Npz(Choosing):
    """Settings of the npz reader. The columns asked for are read whole for every piece: npz cannot be read in part."""

    endings: ClassVar[tuple[str, ...]] = (".npz",)

    columns: tuple[str, ...] = ()
    """Arrays to read (default: all, offsets left out)."""
    offsets: dict[str, str] = {}
    """Which array holds the offsets of a ragged one: `{"train_x": "train_node_off"}`. `NAME` with `NAME_offsets` in
    the archive is found without being told."""
    units: dict[str, str] = {}
    """Units of columns; the file does not say."""
    chunk: Annotated[int, Setting(ge=1)] = 100_000
    """Events in a piece."""

    def pieces(self, location: str) -> list[Piece]:
        return even(len(self._table(location)), self.chunk)

    def load(self, location: str, piece: Piece) -> Table:
        return self._table(location).slice(piece.start, piece.stop)

    def _table(self, location: str) -> Table:
        with _opened(location) as archive:
            there = archive.files
            chosen = self.chosen(there, "array")
            check_known((*self.offsets, *self.offsets.values()), there, "array")
            told = {name: f"{name}_offsets" for name in there if f"{name}_offsets" in there} | self.offsets
            names = chosen or [name for name in there if name not in told.values()]
            offsets = {key: _array(archive, key) for key in dict.fromkeys(told[n] for n in names if n in told)}
            return declare({name: _column(archive, name, offsets, told.get(name)) for name in names}, self.units)


@contextlib.contextmanager
def _opened(location: str) -> Iterator[Any]:
    with opened(location) as stream:
        try:
            with NpzFile(stream, allow_pickle=False) as archive:
                yield archive
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
            raise DataError(f"not a readable npz archive ({error})") from error


def _array(archive: Any, name: str) -> Any:
    try:
        array = np.asarray(archive[name])
    except ValueError as error:  # objects need pickle, which may run code
        raise DataError(f"array '{name}' cannot be read ({error})") from error
    return numbers(array, name)


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
