"""Many small arrays at once, decompressed or copied to where they are wanted, without Python's lock.

A thread that decompresses through a Python call asks for the lock after every array; beside a training loop that wants
it too, sixteen such threads were 15 times slower on an H200's host than alone. Here each thread makes one call for its
share: a loop compiled by numba around blosc2's own C function. Where blosc2 came without its library, or the two do not
agree, arrays are taken one by one.
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


class Packed(NamedTuple):
    """An array as it is held: its bytes, compressed or as they were."""

    held: bytes | NDArray[Any]
    compressed: bool
    address: int
    nbytes: int

    @classmethod
    def of(cls, held: bytes | NDArray[Any], *, compressed: bool) -> Packed:
        seen = np.frombuffer(held, np.uint8) if isinstance(held, bytes) else held
        return cls(held, compressed, seen.ctypes.data, seen.nbytes)


class Jobs(NamedTuple):
    """Arrays to be filled: int64 columns of the same length, of addresses and bytes."""

    source: NDArray[np.int64]
    stored: NDArray[np.int64]
    target: NDArray[np.int64]
    wanted: NDArray[np.int64]
    compressed: NDArray[np.int64]

    def share(self, first: int, step: int) -> Jobs:
        return Jobs(*(np.ascontiguousarray(each[first::step]) for each in self))


Unpack = Callable[[Jobs], None]


def unpacker() -> Unpack:
    """What does jobs, for one thread at a time. Raises DataError if one is damaged."""
    found = _library()
    if found is None:
        return _one_by_one
    loop, new = found
    context = new()

    def unpack(jobs: Jobs) -> None:
        if loop(context, *jobs):
            raise DataError("compressed samples in memory cannot be decompressed: the memory of this machine is faulty")

    return unpack


def _one_by_one(jobs: Jobs) -> None:
    import blosc2

    for source, stored, target, wanted, compressed in zip(*(each.tolist() for each in jobs), strict=True):
        to = np.ctypeslib.as_array((ctypes.c_ubyte * wanted).from_address(target))
        given = (ctypes.c_ubyte * stored).from_address(source)
        if compressed:
            blosc2.decompress2(given, dst=to, nthreads=1)
        else:
            to[...] = given


class _Parameters(ctypes.Structure):
    """blosc2_dparams."""

    _fields_ = (
        ("nthreads", ctypes.c_int16),
        ("schunk", ctypes.c_void_p),
        ("postfilter", ctypes.c_void_p),
        ("postparams", ctypes.c_void_p),
        ("typesize", ctypes.c_int32),
    )


@cache
def _library() -> tuple[Any, Callable[[], int]] | None:
    """The loop, and what makes contexts for it; None where they do not give back what was compressed."""
    try:
        library = ctypes.CDLL(str(_path()))
        made = _loop(library.blosc2_decompress_ctx, ctypes.CDLL(None).memcpy)
    except (ImportError, OSError, AttributeError):
        return None
    library.blosc2_create_dctx.restype, library.blosc2_create_dctx.argtypes = ctypes.c_ssize_t, [_Parameters]
    library.blosc2_init()

    def new() -> int:
        return int(library.blosc2_create_dctx(_Parameters(1, None, None, None, 8)))

    return (made, new) if _agrees(made, new()) else None


def _path() -> Path:
    import blosc2

    return Path(blosc2.__file__).parent / "lib" / "libblosc2.so"


def _loop(decompress: Any, copy: Any) -> Any:
    from numba import njit

    size, count = ctypes.c_ssize_t, ctypes.c_int32
    decompress.restype, decompress.argtypes = count, [size, size, count, size, count]
    copy.restype, copy.argtypes = size, [size, size, size]

    @njit(nogil=True)
    def loop(context: Any, source: Any, stored: Any, target: Any, wanted: Any, compressed: Any) -> int:
        bad = 0
        for n in range(len(source)):
            if not compressed[n]:
                copy(target[n], source[n], wanted[n])
            elif decompress(context, source[n], stored[n], target[n], wanted[n]) != wanted[n]:
                bad += 1
        return bad

    return loop


def _agrees(loop: Any, context: int) -> bool:
    import blosc2

    values, found = np.arange(1000, dtype=np.int32), np.zeros((2, 1000), dtype=np.int32)
    held = [
        Packed.of(blosc2.compress2(values, typesize=4, nthreads=1), compressed=True),
        Packed.of(values, compressed=False),
    ]
    jobs = jobs_of(held, found.ctypes.data + np.arange(2) * values.nbytes, np.full(2, values.nbytes))
    return not loop(context, *jobs) and bool((found == values).all())


def jobs_of(held: list[Packed], target: NDArray[np.int64], wanted: NDArray[np.int64]) -> Jobs:
    """Each array to its target (an address), which has room for `wanted` bytes."""
    facts = np.array([(each.address, each.nbytes, each.compressed) for each in held], dtype=np.int64).reshape(-1, 3).T
    return Jobs(facts[0], facts[1], target, wanted, facts[2])
