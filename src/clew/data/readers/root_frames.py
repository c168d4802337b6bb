"""A check that uproot does not make: a list of an RNTuple cannot be longer than the file, or have more items than
its bytes can hold.

A damaged file may state billions of items. uproot would read the same bytes again and again, for ever, and keep them.
"""

from __future__ import annotations

import functools
from typing import Any

_SMALLEST_ITEM = 4
"""Bytes. Every item of a list starts with a number at least this long."""


@functools.cache
def check_list_frames() -> None:
    """Let uproot refuse impossible lists, in this process."""
    from uproot.models import RNTuple

    read_unchecked = RNTuple.ListFrameReader.read

    def read(self: Any, chunk: Any, cursor: Any, context: Any) -> Any:
        ahead = cursor.copy()
        size = -ahead.field(chunk, RNTuple._rntuple_frame_size_format, context)
        items = ahead.field(chunk, RNTuple._rntuple_frame_num_items_format, context)
        if size >= 0 and (items * _SMALLEST_ITEM > size or cursor.index + size > chunk.stop):
            raise ValueError(f"a list of {items} items in {size} bytes")
        return read_unchecked(self, chunk, cursor, context)

    RNTuple.ListFrameReader.read = read
