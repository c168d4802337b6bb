"""Decompress or copy many small arrays at once, without holding Python's global lock (GIL).

A thread that decompresses through Python calls needs the GIL after every array. While a training loop also used it,
sixteen such threads were 15 times slower on the host of an H200 than alone. Here each thread makes one call for all of
its arrays: a loop compiled by numba calls the C function of blosc2. If blosc2 was installed without its library, or the
check `_agrees` fails, the arrays are decompressed one by one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew.errors import DataError


class StoredArray(NamedTuple):
    """The bytes of an array in memory, compressed or not."""

    data: bytes | NDArray[Any]
    compressed: bool
    address: int
    nbytes: int

    @classmethod
    def of(cls, data: bytes | NDArray[Any], *, compressed: bool) -> StoredArray:
        """Return the entry for these bytes."""
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        return cls(data, compressed, array.ctypes.data, array.nbytes)


class DecompressionTasks(NamedTuple):
    """Arrays to decompress or copy: int64 columns of the same length with addresses and numbers of bytes."""

    source: NDArray[np.int64]
    stored: NDArray[np.int64]
    target: NDArray[np.int64]
    target_bytes: NDArray[np.int64]
    compressed: NDArray[np.int64]

    def share(self, first: int, step: int) -> DecompressionTasks:
        """Return every `step`-th task, beginning at `first`."""
        return DecompressionTasks(*(np.ascontiguousarray(column[first::step]) for column in self))


Decompressor = Callable[[DecompressionTasks], None]


def make_decompressor() -> Decompressor:
    """Return a function that executes tasks. It can be used by one thread at a time, and raises DataError if an array
    is
    damaged."""
    library = find_library()
    if library is None:
        return decompress_one_by_one
    loop, new = library
    context = new()

    def unpack(jobs: DecompressionTasks) -> None:
        if loop(context, *jobs):
            raise DataError("compressed samples in memory cannot be decompressed: the memory of this machine is faulty")

    return unpack


def decompress_one_by_one(jobs: DecompressionTasks) -> None:
    """Decompress without threads of the library."""
    import blosc2

    for source, stored, target, target_bytes, compressed in zip(*(column.tolist() for column in jobs), strict=True):
        to = np.ctypeslib.as_array((ctypes.c_ubyte * target_bytes).from_address(target))
        source_data = (ctypes.c_ubyte * stored).from_address(source)
        if compressed:
            blosc2.decompress2(source_data, dst=to, nthreads=1)
        else:
            to[...] = source_data


class _Parameters(ctypes.Structure):
    """The C structure blosc2_dparams."""

    _fields_ = (
        ("nthreads", ctypes.c_int16),
        ("schunk", ctypes.c_void_p),
        ("postfilter", ctypes.c_void_p),
        ("postparams", ctypes.c_void_p),
        ("typesize", ctypes.c_int32),
    )


@cache
def find_library() -> tuple[Any, Callable[[], int]] | None:
    """Return the compiled loop and a function that makes contexts for it. None if they do not return what was
    compressed."""
    try:
        library = ctypes.CDLL(str(_path()))
        loop = _loop(library.blosc2_decompress_ctx, ctypes.CDLL(None).memcpy)
    except (ImportError, OSError, AttributeError):
        return None
    library.blosc2_create_dctx.restype, library.blosc2_create_dctx.argtypes = ctypes.c_ssize_t, [_Parameters]
    library.blosc2_init()

    def new() -> int:
        return int(library.blosc2_create_dctx(_Parameters(1, None, None, None, 8)))

    return (loop, new) if _agrees(loop, new()) else None


def _path() -> Path:
    import blosc2

    return Path(blosc2.__file__).parent / "lib" / "libblosc2.so"


def _loop(decompress: Any, copy: Any) -> Any:
    from numba import njit

    size, count = ctypes.c_ssize_t, ctypes.c_int32
    decompress.restype, decompress.argtypes = count, [size, size, count, size, count]
    copy.restype, copy.argtypes = size, [size, size, size]

    @njit(nogil=True)
    def loop(context: Any, source: Any, stored: Any, target: Any, target_bytes: Any, compressed: Any) -> int:
        bad = 0
        for n in range(len(source)):
            if not compressed[n]:
                copy(target[n], source[n], target_bytes[n])
            elif decompress(context, source[n], stored[n], target[n], target_bytes[n]) != target_bytes[n]:
                bad += 1
        return bad

    return loop


def _agrees(loop: Any, context: int) -> bool:
    import blosc2

    values, output = np.arange(1000, dtype=np.int32), np.zeros((2, 1000), dtype=np.int32)
    arrays = [
        StoredArray.of(blosc2.compress2(values, typesize=4, nthreads=1), compressed=True),
        StoredArray.of(values, compressed=False),
    ]
    jobs = decompression_tasks(arrays, output.ctypes.data + np.arange(2) * values.nbytes, np.full(2, values.nbytes))
    return not loop(context, *jobs) and bool((output == values).all())


def decompression_tasks(
    arrays: list[StoredArray], target: NDArray[np.int64], target_bytes: NDArray[np.int64]
) -> DecompressionTasks:
    """Return the tasks that write arrays to memory addresses.

    Args:
        arrays: The stored arrays.
        target: Address of the memory for each array.
        target_bytes: Size of that memory, in bytes.
    """
    facts = (
        np.array([(array.address, array.nbytes, array.compressed) for array in arrays], dtype=np.int64).reshape(-1, 3).T
    )
    return DecompressionTasks(facts[0], facts[1], target, target_bytes, facts[2])
