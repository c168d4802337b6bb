"""Data frames of pandas in HDF5 files, read without pandas and PyTables.

pandas stores a frame in a group, in one of two formats. `fixed` has a matrix for every dtype, with the names of its
columns beside it. `table` has one dataset of records, whose fields are matrices or single columns; their names are in
attributes, as pickles, which are read without executing them. The index of a frame is left out.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from clew.data.readers import safe_pickle
from clew.errors import DataError

_LARGE, _COMPRESSION = 1 << 30, 20_000
"""A dataset that states to be larger than both, in bytes and in bytes per stored byte, would only fill the memory."""


class FrameColumn:
    """One column of a frame, with the attributes of a dataset that the HDF5 reader uses."""

    ndim = 1

    def __init__(self, values: _Values, place: int | None) -> None:
        self._values, self._place = values, place
        self.dtype = values.dtype
        self.shape = (len(values),)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        values = self._values.read(rows)
        return values if self._place is None else np.ascontiguousarray(values[:, self._place])


class _Values:
    """A matrix of a frame, or a field of its records. The rows that were read last are remembered, because the columns
    of a matrix are asked for one by one."""

    def __init__(self, dataset: Any, field: str | None, rows: _Rows) -> None:
        self._field, self._rows = field, rows
        self._length = int(dataset.shape[0])
        kind = dataset.dtype[field] if field else dataset.dtype
        self.dtype: np.dtype[Any] = kind.base
        self.shape: tuple[int, ...] = (*dataset.shape, *kind.shape)

    def __len__(self) -> int:
        return self._length

    def read(self, rows: slice) -> NDArray[Any]:
        values = self._rows.read(rows)
        return values[self._field] if self._field else values


class _Rows:
    """Rows of a dataset; those that were read last are remembered."""

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset, self._name = dataset, name
        self._last: tuple[slice, NDArray[Any]] | None = None

    def read(self, rows: slice) -> NDArray[Any]:
        if self._last is None or self._last[0] != rows:
            check_stored(self._dataset, self._name)
            self._last = rows, np.asarray(self._dataset[rows])
        return self._last[1]


def frames(file: h5py.File) -> dict[str, FrameColumn]:
    """Return the columns of all frames in a file by path: the name of the column, if there is one frame only.

    Raises:
        DataError: A frame is damaged, or its columns have no plain names.
    """
    groups: dict[str, Any] = {}
    file.visititems(lambda path, item: groups.update({path: item}) if _is_frame(item) else None)
    columns = {path: dict(_columns(group, path)) for path, group in groups.items()}
    if len(columns) == 1:
        return next(iter(columns.values()))
    return {f"{path}/{name}": column for path, named in columns.items() for name, column in named.items()}


def check_stored(dataset: Any, name: str) -> None:
    """Check that a dataset can be read: it states no impossible size, and its compression is known.

    Raises:
        DataError: It cannot be read.
    """
    size, stored = dataset.dtype.itemsize * math.prod(dataset.shape), dataset.id.get_storage_size()
    if size > max(_LARGE, _COMPRESSION * stored):
        raise DataError(f"dataset '{name}' states {size:.1e} bytes in {stored:,} bytes of the file; it is damaged")
    plan = dataset.id.get_create_plist()
    for number in range(plan.get_nfilters()):
        code, _, _, label = plan.get_filter(number)
        if not _filter_available(code):
            filter_name = label.decode(errors="replace") or f"filter {code}"
            raise DataError(
                f"dataset '{name}' is compressed with {filter_name}, which h5py does not know: pip install hdf5plugin, "
                "or write the file again with `ptrepack --complib=zlib OLD NEW` of PyTables"
            )


def _filter_available(code: int) -> bool:
    if h5py.h5z.filter_avail(code):
        return True
    try:
        importlib.import_module("hdf5plugin")  # registers its filters
    except ImportError:
        return False
    return bool(h5py.h5z.filter_avail(code))


def _is_frame(item: Any) -> bool:
    kind = item.attrs.get("pandas_type", b"") if isinstance(item, h5py.Group) else b""
    return isinstance(kind, (bytes, str)) and kind in (b"frame", b"frame_table", "frame", "frame_table")


def _columns(group: Any, path: str) -> Iterator[tuple[str, FrameColumn]]:
    try:
        yield from _table_columns(group["table"], path) if "table" in group else _fixed_columns(group, path)
    except (KeyError, AttributeError, TypeError, IndexError) as error:
        raise DataError(f"the data frame '{path}' is damaged ({type(error).__name__}: {error})") from error


def _fixed_columns(group: Any, path: str) -> Iterator[tuple[str, FrameColumn]]:
    for number in range(int(group.attrs["nblocks"])):
        dataset = group[f"block{number}_values"]
        names = [_text(name, path) for name in group[f"block{number}_items"][:].tolist()]
        yield from _matrix_columns(_Values(dataset, None, _Rows(dataset, path)), names, path)


def _table_columns(dataset: Any, path: str) -> Iterator[tuple[str, FrameColumn]]:
    rows = _Rows(dataset, path)
    for field in dataset.dtype.names or ():
        pickled = dataset.attrs.get(f"{field}_kind")
        if field == "index" or pickled is None:
            continue
        text = pickled.encode() if isinstance(pickled, str) else pickled
        names = safe_pickle.load(io.BytesIO(text)) if isinstance(text, bytes) else None
        if not isinstance(names, list):
            raise DataError(f"the data frame '{path}' is damaged (no names of columns)")
        yield from _matrix_columns(_Values(dataset, field, rows), [_text(name, path) for name in names], path)


def _matrix_columns(values: _Values, names: list[str], path: str) -> Iterator[tuple[str, FrameColumn]]:
    matrix = len(values.shape) == 2
    if len(names) != (values.shape[1] if matrix else 1):
        raise DataError(f"the data frame '{path}' is damaged ({len(names)} names for {values.shape[1:]} columns)")
    for place, name in enumerate(names):
        yield name, FrameColumn(values, place if matrix else None)


def _text(name: Any, path: str) -> str:
    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    if not isinstance(name, str):
        raise DataError(f"columns of the data frame '{path}' are called {name!r:.40}; give them plain names")
    return name
