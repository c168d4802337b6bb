"""Files of showers: readers of the layouts of the CaloChallenge and of regular grids, and the writer."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import h5py
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Table, readers
from clew.data.readers import FilePiece, FilePieces, Reader, open_hdf5
from clew.data.writers import TableWriter
from clew.errors import DataError
from clew.recipes.fastsim.columns import ENERGY, EVENT, PHI, THETA, VOXELS
from clew.recipes.fastsim.geometry import GeometryConfig

SHOWERS, ENERGIES = "showers", "incident_energies"
"""Datasets of a file of the CaloChallenge: (n, voxels) and (n, 1), MeV."""
GRID_SHOWERS, GRID_ENERGIES, GRID_TARGETS = "ECAL", "energy", "target"
"""Datasets of a file of grids: cells (n, layers, rows, columns), and the energy (n) or targets (n, ..., 2 or more)
whose second number is the energy. GeV."""
ANGLES = (THETA, PHI)
CHUNK = 256
"""Showers per chunk of a file that is written one table at a time."""


class ShowerReader(Reader):
    """Reads showers of one geometry from HDF5."""

    endings: ClassVar[tuple[str, ...]] = (".h5", ".hdf5")

    geometry: GeometryConfig = GeometryConfig()
    chunk: Annotated[int, Field(ge=1)] = 1000
    """Showers per piece."""

    def pieces(self, location: str) -> list[FilePiece]:
        with open_hdf5(location) as file:
            showers = self._count(file)
        if not showers:
            raise DataError("no showers in it")
        return [FilePiece(first, min(first + self.chunk, showers)) for first in range(0, showers, self.chunk)]

    def load(self, location: str, piece: FilePiece) -> Table:
        with open_hdf5(location) as file:
            self._count(file)
            rows, part = piece.stop - piece.start, slice(piece.start, piece.stop)
            if self.geometry.kind == "grid":
                voxels = 1000 * np.asarray(file[GRID_SHOWERS][part], dtype=np.float32).reshape(rows, -1)
                energy = 1000 * _grid_energies(file, part)
            else:
                voxels = np.asarray(file[SHOWERS][part], dtype=np.float32)
                energy = np.asarray(file[ENERGIES][part], dtype=np.float32).reshape(rows, -1)[:, 0]
            angles = {name: np.asarray(file[name][part], np.float32).reshape(rows) for name in ANGLES if name in file}
        columns: dict[str, NDArray[Any]] = {
            EVENT: np.arange(piece.start, piece.stop),
            ENERGY: energy,
            VOXELS: voxels,
            **angles,
        }
        return Table(columns, units={ENERGY: "MeV", VOXELS: "MeV", **dict.fromkeys(angles, "rad")})

    def _count(self, file: Any) -> int:
        """Return the number of showers.

        Raises:
            DataError: A dataset is missing or does not fit the geometry.
        """
        grid = self.geometry.kind == "grid"
        showers = _dataset(file, (GRID_SHOWERS if grid else SHOWERS,))
        energies = _dataset(file, (GRID_ENERGIES, GRID_TARGETS) if grid else (ENERGIES,))
        geometry = self.geometry.load()
        cells = int(np.prod(showers.shape[1:], dtype=np.int64))
        if cells != geometry.voxels or (grid and showers.shape[1:4] != self.geometry.cells):
            shape = "x".join(map(str, showers.shape[1:]))
            raise DataError(f"showers of {shape} voxels, but {geometry.name} has {geometry.voxels}; set geometry.kind")
        if len(showers) != len(energies):
            raise DataError(f"{len(showers)} showers, but {len(energies)} incident energies")
        return len(showers)


def read_showers(path: str, geometry: GeometryConfig) -> Iterable[Table]:
    """Read the showers of a file: HDF5 of the CaloChallenge or of grids, or a table with the same columns."""
    if ShowerReader.accepts(path.lower()) and not _is_table(path):
        return FilePieces(ShowerReader(geometry=geometry), path)
    return readers.read(path)


def write_showers(path: Path, showers: Table, attributes: Mapping[str, Any] | None = None) -> None:
    """Write showers in the layout of the CaloChallenge.

    Args:
        path: The file. It appears when it is complete.
        showers: A table with the columns of `columns.py`.
        attributes: Facts about the file, stored as its HDF5 attributes.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # no other user can guess it
    with h5py.File(partial, "w") as file:
        packed = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
        file.create_dataset(ENERGIES, data=showers.fixed(ENERGY)[:, None], **packed)
        file.create_dataset(SHOWERS, data=showers.fixed(VOXELS), **packed)
        for name in ANGLES:
            if name in showers:
                file.create_dataset(name, data=showers.fixed(name)[:, None], **packed)
        file.attrs.update(attributes or {})
    partial.replace(path)


class ShowerWriter(TableWriter):
    """Writes generated showers in the layout of the CaloChallenge, one table at a time."""

    def _begin(self, like: Table) -> None:
        self._file = h5py.File(self.path, "w")
        angles = {name: 1 for name in ANGLES if name in like}
        packed = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
        for name, width in {ENERGIES: 1, SHOWERS: like.fixed(VOXELS).shape[1], **angles}.items():
            shape = {"shape": (0, width), "maxshape": (None, width), "chunks": (CHUNK, width)}
            self._file.create_dataset(name, dtype=np.float32, **shape, **packed)

    def _write(self, table: Table) -> None:
        columns = {ENERGIES: ENERGY, SHOWERS: VOXELS, **{name: name for name in ANGLES if name in table}}
        for name, column in columns.items():
            target, values = self._file[name], table.fixed(column)
            target.resize(len(target) + len(values), axis=0)
            target[-len(values) :] = values.reshape(len(values), -1)

    def close(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()


def count_showers(path: Path) -> int:
    """Return the number of showers in a file; 0 if it does not exist or cannot be read."""
    try:
        with h5py.File(path, "r") as file:
            return len(file[SHOWERS])
    except (OSError, KeyError):
        return 0


def check_showers(showers: Table, voxels: int) -> None:
    """Check the values of showers.

    Raises:
        DataError: An energy is negative or not finite, or a shower has another number of voxels.
    """
    values, energy = showers.fixed(VOXELS), showers.fixed(ENERGY)
    numbers = showers.fixed(EVENT) if EVENT in showers else np.arange(len(showers))
    if values.ndim != 2 or values.shape[1] != voxels:
        raise DataError(f"showers of shape {values.shape[1:]}, but the geometry has {voxels} voxels; set geometry.kind")
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        row, voxel = np.argwhere(bad)[0]
        raise DataError(f"shower {numbers[row]}: voxel {voxel} has {values[row, voxel]:g} MeV, not 0 or more")
    wrong = ~(np.isfinite(energy) & (energy > 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"shower {numbers[row]}: incident energy {energy[row]:g} MeV, not above 0")


def _grid_energies(file: Any, part: slice) -> NDArray[np.float32]:
    if GRID_ENERGIES in file:
        return np.asarray(file[GRID_ENERGIES][part], dtype=np.float32).reshape(part.stop - part.start)
    targets = np.asarray(file[GRID_TARGETS][part], dtype=np.float32)
    if targets.ndim < 2 or targets.shape[-1] < 2:
        raise DataError(f"dataset '{GRID_TARGETS}' of shape {targets.shape} has no energy as its second number")
    return targets.reshape(len(targets), -1, targets.shape[-1])[:, 0, 1]


def _is_table(path: str) -> bool:
    try:
        with open_hdf5(path) as file:
            return "clew_table" in file.attrs
    except DataError:
        return False  # the reader of showers reports missing and unreadable files


def _dataset(file: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if name in file:
            return file[name]
    raise DataError(f"no dataset '{' or '.join(names)}' in it, only {', '.join(file) or 'none'}")
