"""The HDF5 reader: tables of clew, data frames of pandas, or any file whose datasets have one row per event."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import h5py
import numpy as np
from pydantic import Field as Setting

from clew.data.readers.base import (
    ColumnReader,
    FilePiece,
    as_numbers,
    check_names,
    column_names,
    cut_evenly,
    make_table,
    open_file,
)
from clew.data.readers.hdf5_check import READ_ERRORS, all_datasets, check_whole, uses_heaps
from clew.data.readers.hdf5_frames import FrameColumn, check_stored, frames
from clew.data.readers.hdf5_heap import HeapCheckedStream
from clew.data.readers.items import ItemCounts
from clew.data.table import Column, Ragged, Table, hdf5
from clew.errors import DataError, list_names
from clew.storage import is_url, local_path


class Hdf5Reader(ColumnReader):
    """Settings of the HDF5 reader."""

    endings: ClassVar[tuple[str, ...]] = (".h5", ".hdf5")

    columns: tuple[str, ...] = ()
    """Datasets to read, by path. By default all datasets of numbers, or of lists of numbers. A column has the name of
    the
    last part of its path. If two would have the same name, it is the whole path with _ for /. In files with data frames
    of pandas these are the columns of the frames, `NAME` or with several frames `FRAME/NAME`."""
    units: dict[str, str] = {}
    """Units of columns. They replace those of a clew table."""
    chunk: Annotated[int, Setting(ge=1)] = 5000
    """Events per piece."""

    def pieces(self, location: str) -> list[FilePiece]:
        with open_hdf5(location) as file:
            if "clew_table" in file.attrs:
                return cut_evenly(int(file.attrs["events"]), self.chunk)
            lengths = {name: len(dataset) for name, dataset in self._datasets(file).items()}
            if len(set(lengths.values())) > 1:
                lengths_text = list_names(f"{name} {length}" for name, length in lengths.items())
                raise DataError(f"datasets differ in length: {lengths_text}; choose some with the reader's columns")
            return cut_evenly(next(iter(lengths.values()), 0), self.chunk)

    def load(self, location: str, piece: FilePiece) -> Table:
        with open_hdf5(location) as file:
            if "clew_table" in file.attrs:
                names = self.columns_to_read(json.loads(file.attrs["columns"]), "column")
                table = hdf5.read(file, start=piece.start, stop=piece.stop, columns=names or None)
                check_names(self.units, table, "column")
                return table.join({}, units=self.units)
            return make_table({name: _column(d, name, piece) for name, d in self._datasets(file).items()}, self.units)

    def item_counts(self, location: str, piece: FilePiece) -> ItemCounts:
        with open_hdf5(location) as file:
            if "clew_table" in file.attrs:
                facts = json.loads(file.attrs["columns"])
                return _clew_item_counts(file, self.columns_to_read(facts, "column") or list(facts), piece)
            lists = {n: d for n, d in self._datasets(file).items() if h5py.check_vlen_dtype(d.dtype) is not None}
            lengths = {n: np.array([len(item) for item in d[piece.start : piece.stop]]) for n, d in lists.items()}
        return ItemCounts.of(lengths, {name: name for name in lengths})

    def _datasets(self, file: h5py.File) -> dict[str, Any]:
        """Return the datasets to read by the name of their column."""
        datasets = frames(file) or all_datasets(file)
        columns, optional = (tuple(path.strip("/") for path in paths) for paths in (self.columns, self.optional))
        stripped = self.model_copy(update={"columns": columns, "optional": optional})
        chosen = stripped.columns_to_read(datasets, "dataset")
        for path in chosen:
            if not _usable(datasets[path]):
                raise DataError(f"dataset '{path}' holds {_kind(datasets[path])}, not a column of numbers")
        paths = chosen or [path for path, dataset in datasets.items() if _usable(dataset)]
        if not paths:
            raise DataError("no dataset of numbers in it")
        return {name: datasets[path] for name, path in zip(column_names(paths), paths, strict=True)}


def _clew_item_counts(file: h5py.File, names: list[str], piece: FilePiece) -> ItemCounts:
    """Return the counts of a clew table. Only offsets are read."""
    facts = json.loads(file.attrs["columns"])
    pointing = {facts[name]["offsets"] for name in facts if "index_of" in facts[name]}
    keys = {name: facts[name]["offsets"] for name in names if "offsets" in facts[name]}
    keys = {name: key for name, key in keys.items() if key not in pointing}
    first: dict[str, str] = {}
    sets = {name: first.setdefault(key, name) for name, key in keys.items()}
    offsets = {name: file["offsets"][key][piece.start : piece.stop + 1] for key, name in first.items()}
    return ItemCounts.of({name: np.diff(array) for name, array in offsets.items()}, sets)


@contextlib.contextmanager
def open_hdf5(location: str) -> Iterator[h5py.File]:
    """Open a file from anywhere, after it was checked (`hdf5_check`).

    Raises:
        DataError: it is missing or damaged, or has values in other files.
    """
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open_file(location))
        try:
            if is_url(location):
                file = stack.enter_context(h5py.File(HeapCheckedStream(stream), "r"))
                check_whole(file)
                yield file
            elif uses_heaps(local_path(location)):
                yield stack.enter_context(h5py.File(HeapCheckedStream(stream), "r"))
            else:
                yield stack.enter_context(h5py.File(local_path(location), "r"))  # faster
        except READ_ERRORS as error:
            raise DataError(f"not a readable HDF5 file ({error.__cause__ or error})") from error


def _usable(dataset: Any) -> bool:
    inner = h5py.check_vlen_dtype(dataset.dtype)
    if inner is not None:
        return dataset.ndim == 1 and np.dtype(inner).kind in "biufc"
    return bool(dataset.ndim) and dataset.dtype.kind in "biufc"


def _kind(dataset: Any) -> str:
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return "strings"
    return f"{dataset.dtype}" if dataset.ndim else "a single value"


def _column(dataset: Any, name: str, piece: FilePiece) -> Column:
    if not isinstance(dataset, FrameColumn):
        check_stored(dataset, name)
    values = dataset[piece.start : piece.stop]
    inner = h5py.check_vlen_dtype(dataset.dtype)
    if inner is not None:
        ragged = Ragged.from_lists(list(values), dtype=inner)
        return ragged.share(as_numbers(ragged.values, name))
    return as_numbers(np.asarray(values), name)
