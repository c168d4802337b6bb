"""Readers: raw events from text, HDF5, Parquet, npz, pickle and ROOT files to tables, in pieces of bounded size.

`read(location)` chooses the reader by the name of the file. It returns a lazy sequence of tables, whose pieces can be
read in any order and in any process. Other packages add a reader with an entry point in the group `clew.readers`. The
readers of the shipped recipes are registered in the same way; they are chosen by their name only (`kind`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from clew.core.config import Document, validate
from clew.core.entry_points import installed_entry_points, load_entry_point, shipped_entry_points
from clew.data.readers.base import DataWarning, FilePiece, FilePieces, Reader, cut_evenly, open_file
from clew.errors import ConfigError, DataError, nearest
from clew.storage import split_inside

READERS = {
    "trackml": "clew.data.readers.trackml:TrackMLReader",
    "text": "clew.data.readers.text:TextReader",
    "hdf5": "clew.data.readers.hdf5:Hdf5Reader",
    "parquet": "clew.data.readers.parquet:ParquetReader",
    "npz": "clew.data.readers.npz:NpzReader",
    "root": "clew.data.readers.root:RootReader",
    "pickle": "clew.data.readers.pickle_file:PickleReader",
}
"""The readers of general file formats: `module:Class` by name, in the order in which file names are compared."""
ENTRY_POINTS = "clew.readers"

__all__ = [
    "DataWarning",
    "FilePiece",
    "FilePieces",
    "Reader",
    "available",
    "cut_evenly",
    "find",
    "kind_of",
    "open_file",
    "open_hdf5",
    "read",
]


def read(location: str, kind: str | None = None, **options: Any) -> FilePieces:
    """Return the events of a file as a lazy sequence of tables.

    Args:
        location: Path or URL of the file; `file.root:tree` names a tree in a ROOT file.
        kind: Name of the reader. By default the name of the file decides.
        **options: Settings of the reader, such as `columns`, `units` or `chunk`.

    Returns:
        The pieces of the file. A piece is read when it is asked for.

    Raises:
        DataError: no reader accepts files with this name.
        ConfigError: there is no reader `kind`, or a setting is unknown or out of range.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "hits.csv"
        >>> _ = path.write_text("event,x\\n1,0.5\\n1,1.5\\n2,2.5\\n")
        >>> read(str(path))[0]
        Table(2 events; event: int64, x: ragged float64)
    """
    reader = find(kind or kind_of(location))
    return FilePieces(validate(reader, Document(options, source=f"the {reader.kind_name()} reader")), location)


def open_hdf5(location: str) -> AbstractContextManager[Any]:
    """Open an HDF5 file from anywhere, after it was checked. For readers with a layout of their own.

    Args:
        location: Path or URL of the file.

    Returns:
        A context manager that gives the `h5py.File`.

    Raises:
        DataError: the file is missing or damaged, or has values in other files.
    """
    from clew.data.readers import hdf5  # imported late: other formats do not need h5py

    return hdf5.open_hdf5(location)


def available() -> dict[str, str]:
    """Return the `module:Class` of every installed reader by name. Other packages cannot replace clew's readers."""
    return {**installed_entry_points(ENTRY_POINTS), **READERS}


def find(kind: str) -> type[Reader]:
    """Return the class of a reader.

    Args:
        kind: Name of the reader, such as `parquet`.

    Raises:
        ConfigError: there is no such reader, or it cannot be imported.
    """
    table = READERS if kind in READERS else shipped_entry_points(ENTRY_POINTS)
    if kind not in table:
        table = available()  # reads the metadata of every installed package, which is slow
    if kind not in table:
        raise ConfigError(f"no reader '{kind}'{nearest(kind, table)}")
    reader = load_entry_point("reader", kind, table[kind])
    if not (isinstance(reader, type) and issubclass(reader, Reader)):
        raise ConfigError(f"reader '{kind}' ({table[kind]}) is not a subclass of clew.readers.Reader")
    return reader


def kind_of(location: str) -> str:
    """Return the name of the reader that accepts a file, by the name of the file.

    The readers of clew are asked first, then those of other packages. The readers of the shipped recipes are not
    asked: they read formats of general readers in a special way, so a recipe or a user names them.

    Raises:
        DataError: no reader accepts files with this name.
    """
    inner = next((part for part in location.split("::") if "/" in part), location)  # of `zip://a.csv::file.zip`
    name = split_inside(inner)[0].rpartition("/")[2].lower()
    for kind in READERS:
        if find(kind).accepts(name):
            return kind
    shipped = shipped_entry_points(ENTRY_POINTS)
    readers = {kind: find(kind) for kind in sorted(available()) if kind not in shipped}
    for kind, reader in readers.items():
        if reader.accepts(name):
            return kind
    endings = ", ".join(dict.fromkeys(ending for reader in readers.values() for ending in reader.endings))
    raise DataError(f"{location}: no reader accepts files with this name; the known endings are {endings}")
