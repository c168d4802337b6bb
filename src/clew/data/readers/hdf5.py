"""HDF5: clew's own tables, or any file whose datasets have one row an event."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import h5py
import numpy as np
from pydantic import Field as Setting

from clew.data.readers.base import Choosing, Piece, check_known, column_names, declare, even, numbers, opened
from clew.data.table import Column, Ragged, Table, hdf5
from clew.errors import DataError
from clew.storage import is_url, local_path


class Hdf5(Choosing):
    """Settings of the HDF5 reader."""

    endings: ClassVar[tuple[str, ...]] = (".h5", ".hdf5")

    columns: tuple[str, ...] = ()
    """Datasets to read, by path (default: all of numbers, or of lists of numbers). A column is named by the last part
    of its path; where two would be called the same, by the whole path with _ for /."""
    units: dict[str, str] = {}
    """Units of columns, over those a clew table says."""
    chunk: Annotated[int, Setting(ge=1)] = 5000
    """Events in a piece."""

    def pieces(self, location: str) -> list[Piece]:
        with _opened(location) as file:
            if "clew_table" in file.attrs:
                return even(int(file.attrs["events"]), self.chunk)
            lengths = {name: len(dataset) for name, dataset in self._datasets(file).items()}
            if len(set(lengths.values())) > 1:
                told = ", ".join(f"{name} {length}" for name, length in lengths.items())
                raise DataError(f"datasets differ in length: {told}; choose some with the reader's columns")
            return even(next(iter(lengths.values()), 0), self.chunk)

    def load(self, location: str, piece: Piece) -> Table:
        with _opened(location) as file:
            if "clew_table" in file.attrs:
                names = self.chosen(json.loads(file.attrs["columns"]), "column")
                table = hdf5.read(file, start=piece.start, stop=piece.stop, columns=names or None)
                check_known(self.units, table, "column")
                return table.join({}, units=self.units)
            return declare({name: _column(d, name, piece) for name, d in self._datasets(file).items()}, self.units)

    def _datasets(self, file: h5py.File) -> dict[str, Any]:
        """The datasets to read by the name of their column."""
        there = _all(file)
        asked = {"columns": self.columns, "optional": self.optional}
        plain = self.model_copy(update={name: tuple(path.strip("/") for path in each) for name, each in asked.items()})
        chosen = plain.chosen(there, "dataset")
        for path in chosen:
            if not _usable(there[path]):
                raise DataError(f"dataset '{path}' holds {_kind(there[path])}, not a column of numbers")
        paths = chosen or [path for path, dataset in there.items() if _usable(dataset)]
        if not paths:
            raise DataError("no dataset of numbers in it")
        return {name: there[path] for name, path in zip(column_names(paths), paths, strict=True)}


@contextlib.contextmanager
def _opened(location: str) -> Iterator[h5py.File]:
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(opened(location))
        try:
            file = stack.enter_context(h5py.File(stream if is_url(location) else local_path(location), "r"))
            yield file
        except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:  # what h5py makes of a damaged file
            raise DataError(f"not a readable HDF5 file ({error})") from error


def _all(file: h5py.File) -> dict[str, Any]:
    """All datasets by path, in the order of their paths."""
    found: dict[str, Any] = {}
    file.visititems(lambda path, item: found.update({path: item}) if isinstance(item, h5py.Dataset) else None)
    return found


def _usable(dataset: Any) -> bool:
    inner = h5py.check_vlen_dtype(dataset.dtype)
    if inner is not None:
        return dataset.ndim == 1 and np.dtype(inner).kind in "biufc"
    return bool(dataset.ndim) and dataset.dtype.kind in "biufc"


def _kind(dataset: Any) -> str:
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return "strings"
    return f"{dataset.dtype}" if dataset.ndim else "a single value"


def _column(dataset: Any, name: str, piece: Piece) -> Column:
    values = dataset[piece.start : piece.stop]
    inner = h5py.check_vlen_dtype(dataset.dtype)
    if inner is not None:
        ragged = Ragged.from_lists(list(values), dtype=inner)
        return ragged.share(numbers(ragged.values, name))
    return numbers(np.asarray(values), name)
