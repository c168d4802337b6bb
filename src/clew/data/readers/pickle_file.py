"""The pickle reader: arrays, plain or compressed with bz2 or gzip: `{"X": [array, ...], "y": [array, ...]}`, one array
per
event.

No code of the file is executed. See `clew.data.readers.safe_pickle`.
"""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field as Setting

from clew.data.readers import safe_pickle
from clew.data.readers.base import ColumnReader, FilePiece, cut_evenly, make_table, open_file, without_file_name
from clew.data.table import Column, Ragged, Table
from clew.errors import DataError
from clew.storage import Stat, stat


class PickleReader(ColumnReader):
    """Settings of the pickle reader. A file is read completely, and kept until the next one, because pickle has no
    partial
    reads."""

    endings: ClassVar[tuple[str, ...]] = (".pkl", ".pickle", ".pkl.bz2", ".pkl.gz")

    columns: tuple[str, ...] = ()
    """Entries to read. By default all. Each is one array for all events, or a list with one array per event. A list
    with
    one dict per event is accepted too."""
    units: dict[str, str] = {}
    """Units of columns. The file does not contain them."""
    chunk: Annotated[int, Setting(ge=1)] = 10_000
    """Events per piece."""

    def pieces(self, location: str) -> list[FilePiece]:
        return cut_evenly(len(self._table(location)), self.chunk)

    def load(self, location: str, piece: FilePiece) -> Table:
        return self._table(location).slice(piece.start, piece.stop)

    def _table(self, location: str) -> Table:
        with without_file_name(location):
            entries = _read(location, stat(location))
        chosen = self.columns_to_read(entries, "entry") or list(entries)
        return make_table({name: _column(name, entries[name]) for name in chosen}, self.units)


@lru_cache(maxsize=1)
def _read(location: str, now: Stat) -> dict[str, Any]:
    """Return the content of a file. `now` identifies the version of the file for the cache."""
    with open_file(location) as stream:
        return _entries(safe_pickle.load(io.BytesIO(_unpacked(stream.read()))))


def _unpacked(data: bytes) -> bytes:
    try:
        if data[:3] == b"BZh":
            return bz2.decompress(data)
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"damaged, or cut short ({error})") from error


def _entries(content: Any) -> dict[str, Any]:
    """Return columns by name."""
    if (
        isinstance(content, list)
        and content
        and all(isinstance(event, dict) and event.keys() == content[0].keys() for event in content)
    ):
        content = {name: [event[name] for event in content] for name in content[0]}
    if not isinstance(content, dict) or not content or not all(isinstance(name, str) for name in content):
        raise DataError("not a dict of columns, nor a list of dicts with the same entries, one per event")
    return content


def _column(name: str, entry: Any) -> Column:
    if isinstance(entry, safe_pickle.PickledArray) and entry.items is None:
        return entry.value
    items = entry.items if isinstance(entry, safe_pickle.PickledArray) else entry
    if not isinstance(items, Sequence) or isinstance(items, str | bytes):
        raise DataError(f"entry '{name}' is neither an array nor a list of arrays, one per event")
    if all(isinstance(item, bool | int | float) for item in items):
        return np.asarray(items)
    return _ragged(name, items)


def _ragged(name: str, items: Sequence[Any]) -> Ragged:
    arrays = [
        array.value if isinstance(array, safe_pickle.PickledArray) and array.items is None else None for array in items
    ]
    wrong = next((place for place, array in enumerate(arrays) if array is None or not array.ndim), None)
    if wrong is not None:
        raise DataError(f"entry '{name}', event {wrong}: not an array of numbers")
    valid = [array for array in arrays if array is not None]
    shapes = {array.shape[1:] for array in valid if len(array)} or {valid[0].shape[1:]}
    if len(shapes) > 1:
        raise DataError(f"entry '{name}': items have shapes {', '.join(map(str, sorted(shapes)))}, one was expected")
    filled = [array for array in valid if len(array)] or valid[:1]
    return Ragged.from_lengths(np.concatenate(filled), [len(array) for array in valid])
