"""Lists of RNTuples that state impossible numbers of items."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from uproot.models.RNTuple import ListFrameReader
from uproot.source.chunk import Chunk
from uproot.source.cursor import Cursor

from clew.data.readers.root_frames import check_list_frames


class _Number:
    """An item of 4 bytes."""

    def read(self, chunk: Any, cursor: Any, context: Any) -> int:
        number: int = cursor.field(chunk, struct.Struct("<I"), context)
        return number


def read_list(size: int, items: int) -> list[int]:
    """Read a list frame that says so, with three items behind it."""
    check_list_frames()
    data = struct.pack("<qI3I", -size, items, 7, 8, 9)
    result: list[int] = ListFrameReader(_Number()).read(Chunk.wrap(None, bytearray(data)), Cursor(0), {})
    return result


def test_a_list_is_read() -> None:
    assert read_list(24, 3) == [7, 8, 9]


@pytest.mark.parametrize(("size", "items"), [(24, 8_388_609), (51_539_607_552, 4_294_967_295)])
def test_an_impossible_list_is_refused(size: int, items: int) -> None:
    with pytest.raises(ValueError, match=rf"a list of {items} items in {size} bytes"):
        read_list(size, items)
