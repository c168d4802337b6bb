"""Checks the heaps of an HDF5 file while they are read: HDF5 2.0 never ends when it meets certain damaged ones.

Texts in attributes and lists in datasets are in global heaps. A heap is a row of objects, each with its size. If a size
makes the next object begin where this one begins, HDF5 repeats it for ever, in C code that nothing can interrupt.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

_SIGNATURE = b"GCOL"
_VERSION = 1
"""One byte. HDF5 ignores the three after it."""
_SMALLEST = 4096
_HEADER = struct.Struct("<HH4xQ")
"""An object: its number (0 is free space), references, size."""


class HeapCheckedStream:
    """A file for `h5py.File`. Reading a damaged heap raises OSError."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the place of the next read."""
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        """Return the place of the next read."""
        return self._stream.tell()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, after a check of heaps that begin in them."""
        start = self._stream.tell()
        data = self._stream.read(size)
        self._check(start, data)
        return data

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer with the next bytes, after a check of heaps that begin in them."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _check(self, start: int, data: bytes) -> None:
        place = data.find(_SIGNATURE)
        while place >= 0:
            self._check_heap(start + place)
            place = data.find(_SIGNATURE, place + 1)
        self._stream.seek(start + len(data))

    def _check_heap(self, start: int) -> None:
        self._stream.seek(start)
        header = self._stream.read(16)
        size = int.from_bytes(header[8:], "little")
        if header[4:5] != bytes([_VERSION]) or size < _SMALLEST:
            return  # not a heap, or one that HDF5 refuses
        available = self._stream.seek(0, 2) - start
        self._stream.seek(start)
        place, heap = 16, self._stream.read(min(size, available))
        while place + _HEADER.size <= len(heap):
            number, _, length = _HEADER.unpack_from(heap, place)
            step = length if number == 0 else _HEADER.size + (length + 7 & ~7)
            if not 0 < step <= len(heap) - place:  # HDF5 adds it to a pointer, which can go back
                raise OSError("a damaged heap")
            place += step
