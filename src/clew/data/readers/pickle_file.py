"""Pickles of arrays, plain or compressed by bz2 or gzip: `{"X": [array, ...], "y": [array, ...]}`, one array an event.

No code of the file is run: see `unpickled`.
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
from clew.data.readers.base import Choosing, Piece, declare, even, opened, unnamed
from clew.data.table import Column, Ragged, Table
from clew.errors import DataError
from clew.storage import Stat, stat


class Pickle(Choosing):
    """Settings of the pickle reader. A file is read whole, and kept until the next: pickles cannot be read in part."""

    endings: ClassVar[tuple[str, ...]] = (".pkl", ".pickle", ".pkl.bz2", ".pkl.gz")

    columns: tuple[str, ...] = ()
    """Entries to read (default: all). Each is one array for all events, or a list with one for each; a list of dicts,
    one an event, is taken too. Lists never share offsets: the file does not say which describe the same items."""
    units: dict[str, str] = {}
    """Units of columns; the file does not say."""
    chunk: Annotated[int, Setting(ge=1)] = 10_000
    """Events in a piece."""

    def pieces(self, location: str) -> list[Piece]:
        return even(len(self._table(location)), self.chunk)

    def load(self, location: str, piece: Piece) -> Table:
        return self._table(location).slice(piece.start, piece.stop)

    def _table(self, location: str) -> Table:
        with unnamed(location):
            entries = _read(location, stat(location))
        chosen = self.chosen(entries, "entry") or list(entries)
        return declare({name: _column(name, entries[name]) for name in chosen}, self.units)


@lru_cache(maxsize=1)
def _read(location: str, now: Stat) -> dict[str, Any]:
    """What a file holds as it is `now`."""
    with opened(location) as stream:
        return _entries(safe_pickle.load(io.BytesIO(_unpacked(stream.read()))))


def _unpacked(data: bytes) -> bytes:
    try:
        if data[:3] == b"BZh":
            return bz2.decompress(data)
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"damaged, or cut short ({error})") from error


def _entries(found: Any) -> dict[str, Any]:
    """Columns by name."""
    if (
        isinstance(found, list)
        and found
        and all(isinstance(each, dict) and each.keys() == found[0].keys() for each in found)
    ):
        found = {name: [event[name] for event in found] for name in found[0]}
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found):
        raise DataError("not a dict of columns, nor a list of such dicts with the same entries, one an event")
    return found


def _column(name: str, found: Any) -> Column:
    if isinstance(found, safe_pickle.Array) and found.items is None:
        return found.value
    items = found.items if isinstance(found, safe_pickle.Array) else found
    if not isinstance(items, Sequence) or isinstance(items, str | bytes):
        raise DataError(f"entry '{name}' is neither an array nor a list of arrays, one an event")
    if all(isinstance(each, bool | int | float) for each in items):
        return np.asarray(items)
    return _ragged(name, items)


def _ragged(name: str, items: Sequence[Any]) -> Ragged:
    arrays = [each.value if isinstance(each, safe_pickle.Array) and each.items is None else None for each in items]
    wrong = next((place for place, each in enumerate(arrays) if each is None or not each.ndim), None)
    if wrong is not None:
        raise DataError(f"entry '{name}', event {wrong}: not an array of numbers")
    known = [each for each in arrays if each is not None]
    shapes = {each.shape[1:] for each in known if len(each)} or {known[0].shape[1:]}
    if len(shapes) > 1:
        raise DataError(f"entry '{name}': items have shapes {', '.join(map(str, sorted(shapes)))}, one was expected")
    filled = [each for each in known if len(each)] or known[:1]
    return Ragged.from_lengths(np.concatenate(filled), [len(each) for each in known])
