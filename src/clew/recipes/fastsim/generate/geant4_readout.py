"""The read-out of silicon: adds the energy of each step to its voxel, in compiled code.

A Python function that Geant4 calls for every step takes half of the time of a simulation. Here the virtual function
`ProcessHits` of the sensitive detector is replaced by a function that numba compiles; the showers are the same, bit for
bit. It reads `G4Step` in memory: energy (double 0), pointers to the points before and after the step (words 2 and 3),
each of which begins with its position.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from clew.recipes.fastsim.generate.geant4_physics import CppLibrary
from clew.recipes.fastsim.generate.parametric import Floats

carray: Any = numba.carray  # type: ignore[attr-defined]
_WORD = ctypes.sizeof(ctypes.c_uint64)
_TABLE_WORDS = 16
"""More than the virtual functions of a sensitive detector."""


class Binning(NamedTuple):
    """Voxels in layers of equal depth, angles and equal rings."""

    layers: int
    angles: int
    rings: tuple[float, ...]
    """Edges, mm, with equal distances."""
    pitch: float
    """Depth of a layer, mm."""


def _to_pointer(context: Any, address: Any) -> Any:
    """Turn an address into a pointer, for compiled code."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


_as_pointer: Any = intrinsic(_to_pointer)


class SiliconReadout:
    """Sums of energy per voxel, MeV, for one event at a time.

    Args:
        binning: The voxels.
    """

    def __init__(self, binning: Binning) -> None:
        self.size = binning.layers * binning.angles * (len(binning.rings) - 1)
        self._voxels = np.zeros(self.size)
        self._function = _compile(binning, self._voxels)
        self._table = (ctypes.c_uint64 * (_TABLE_WORDS + 2))()

    def attach(self, sensor: Any, library: CppLibrary) -> None:
        """Replace `ProcessHits` of a sensitive detector.

        Args:
            sensor: An object of a Python class derived from `G4VSensitiveDetector`.
            library: The library of Geant4.

        Raises:
            RuntimeError: The object in memory is not what it should be.
        """
        instance = ctypes.c_uint64.from_address(id(sensor) + 2 * _WORD).value  # after the head of a Python object
        address = ctypes.c_uint64.from_address(instance).value
        table = ctypes.c_uint64.from_address(address).value
        type_information = ctypes.c_uint64.from_address(table - _WORD).value
        name = ctypes.string_at(ctypes.c_uint64.from_address(type_information + _WORD).value)
        if not name.endswith(b"G4VSensitiveDetector"):
            raise RuntimeError(f"not a sensitive detector in memory, but {name!r}")
        ctypes.memmove(self._table, table - 2 * _WORD, ctypes.sizeof(self._table))
        self._table[2 + _process_hits_slot(library)] = self._function.address
        ctypes.c_uint64.from_address(address).value = ctypes.addressof(self._table) + 2 * _WORD

    def take(self) -> Floats:
        """Return the sums of the event, and start again with 0."""
        voxels = self._voxels.copy()
        self._voxels[:] = 0
        return voxels


def _process_hits_slot(library: CppLibrary) -> int:
    """Return the number of `ProcessHits` among the virtual functions: the pure one of the base class."""
    pure = ctypes.cast(ctypes.CDLL("libstdc++.so.6").__cxa_pure_virtual, ctypes.c_void_p).value
    base = (ctypes.c_uint64 * (_TABLE_WORDS + 2)).from_address(library.address("_ZTV20G4VSensitiveDetector"))
    return list(base).index(pure or 0) - 2


def _compile(binning: Binning, voxels: Floats) -> Any:
    """Return the compiled `ProcessHits`. It holds the address of `voxels`, which must live as long as it is called."""
    layers, angles, pitch = binning.layers, binning.angles, binning.pitch
    rings, width = len(binning.rings) - 1, binning.rings[1]
    target, size = voxels.ctypes.data, len(voxels)

    @numba.cfunc(types.boolean(types.int64, types.int64, types.int64))
    def process_hits(this: int, step: int, history: int) -> bool:
        energy = carray(_as_pointer(step), (1,), np.float64)[0]
        if energy > 0.0:
            words = carray(_as_pointer(step), (4,), np.int64)
            before = carray(_as_pointer(words[2]), (3,), np.float64)
            after = carray(_as_pointer(words[3]), (3,), np.float64)
            x, y, z = (before[0] + after[0]) / 2, (before[1] + after[1]) / 2, (before[2] + after[2]) / 2
            layer = min(max(int(z / pitch), 0), layers - 1)
            angle = min(int(math.atan2(y, x) % (2 * math.pi) / (2 * math.pi) * angles), angles - 1)
            ring = min(int(math.sqrt(x * x + y * y) / width), rings - 1)
            sums = carray(_as_pointer(target), (size,), np.float64)
            sums[(layer * angles + angle) * rings + ring] += energy
        return True

    return process_hits
