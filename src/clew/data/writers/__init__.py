"""Writing tables: HDF5, Parquet and ROOT, piece by piece, by the file's ending."""

from __future__ import annotations

import importlib
from pathlib import Path

from clew.data.writers.base import Writer, behind
from clew.errors import ConfigError

SHIPPED = {
    ".h5": "clew.data.writers.hdf5:Hdf5",
    ".hdf5": "clew.data.writers.hdf5:Hdf5",
    ".parquet": "clew.data.writers.parquet:Parquet",
    ".root": "clew.data.writers.root:Root",
}

__all__ = ["SHIPPED", "Writer", "behind", "find"]


def find(name: str | Path) -> type[Writer]:
    """The writer of files with this name.

    Raises:
        ConfigError: nobody writes such files.
    """
    ending = Path(name).suffix.lower()
    if ending not in SHIPPED:
        raise ConfigError(f"{name}: nobody writes files of this name; choose from {', '.join(SHIPPED)}")
    module, _, kind = SHIPPED[ending].partition(":")
    found: type[Writer] = getattr(importlib.import_module(module), kind)
    return found
