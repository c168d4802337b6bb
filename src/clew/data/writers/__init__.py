"""Writers: tables to HDF5, Parquet and ROOT files, part by part. The ending of the file name selects the writer."""

from __future__ import annotations

import importlib
from pathlib import Path

from clew.data.writers.base import TableWriter, write_in_background
from clew.errors import ConfigError

WRITERS = {
    ".h5": "clew.data.writers.hdf5:Hdf5Writer",
    ".hdf5": "clew.data.writers.hdf5:Hdf5Writer",
    ".parquet": "clew.data.writers.parquet:ParquetWriter",
    ".root": "clew.data.writers.root:RootWriter",
}
"""The `module:Class` of the writer for each ending."""

__all__ = ["WRITERS", "TableWriter", "find", "write_in_background"]


def find(name: str | Path) -> type[TableWriter]:
    """Return the writer class for a file name.

    Raises:
        ConfigError: no writer supports the ending.

    Example:
        >>> find("predictions.parquet").__name__
        'ParquetWriter'
    """
    ending = Path(name).suffix.lower()
    if ending not in WRITERS:
        raise ConfigError(f"{name}: no writer supports files with this name; choose from {', '.join(WRITERS)}")
    module, _, kind = WRITERS[ending].partition(":")
    writer: type[TableWriter] = getattr(importlib.import_module(module), kind)
    return writer
