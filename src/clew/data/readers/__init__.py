"""Reading raw events: text, HDF5, Parquet, npz and ROOT to tables, in pieces of bounded size.

`read(location)` picks a reader by the file's name; third parties add one by an entry point in the group
`clew.readers`. What a reader returns is a lazy sequence of tables: pieces can be read in any order, in any process.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from clew.core.config import Document, validate
from clew.data.readers.base import Piece, Pieces, Reader
from clew.errors import ConfigError, DataError, nearest
from clew.storage import split_inside

SHIPPED = {
    "trackml": "clew.data.readers.trackml:TrackML",
    "text": "clew.data.readers.text:Text",
    "hdf5": "clew.data.readers.hdf5:Hdf5",
    "parquet": "clew.data.readers.parquet:Parquet",
    "npz": "clew.data.readers.npz:Npz",
    "root": "clew.data.readers.root:Root",
    "pickle": "clew.data.readers.pickle_file:Pickle",
    "delphes": "clew.recipes.particleflow.delphes:DelphesReader",
    "edm4hep": "clew.recipes.particleflow.edm4hep:Edm4hepReader",
    "pfnano": "clew.recipes.particleflow.pfnano:PfNanoReader",
}
ENTRY_POINTS = "clew.readers"

__all__ = ["Piece", "Pieces", "Reader", "available", "find", "kind_of", "read"]


def read(location: str, kind: str | None = None, **options: Any) -> Pieces:
    """The events of a file as a lazy sequence of tables.

    `kind` names the reader (default: by the file's ending), `options` are its settings:
    `read("jets.root:tree", columns=["jet_pt"])`.

    Raises:
        DataError: nobody reads such files.
        ConfigError: a setting the reader does not have, or a value it does not take.
    """
    reader = find(kind or kind_of(location))
    return Pieces(validate(reader, Document(options, source=f"the {reader.kind_name()} reader")), location)


def available() -> dict[str, str]:
    """Names of readers and where they lead."""
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {**{point.name: point.value for point in points}, **SHIPPED}


def find(kind: str) -> type[Reader]:
    """The reader of that name.

    Raises:
        ConfigError: there is none, or it does not load.
    """
    table = SHIPPED if kind in SHIPPED else available()  # entry points are slow to list
    if kind not in table:
        raise ConfigError(f"no reader '{kind}'{nearest(kind, table)}")
    module, _, name = table[kind].partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"reader '{kind}' ({table[kind]}) does not load: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Reader)):
        raise ConfigError(f"reader '{kind}' ({table[kind]}) is not a subclass of clew.readers.Reader")
    return found


def kind_of(location: str) -> str:
    """The name of the reader for a file, by its name: those of clew are asked first, then third parties'.

    Raises:
        DataError: nobody reads such files.
    """
    inner = next((part for part in location.split("::") if "/" in part), location)  # of `zip://a.csv::file.zip`
    name = split_inside(inner)[0].rpartition("/")[2].lower()
    for kind in SHIPPED:
        if find(kind).takes(name):
            return kind
    known = {kind: find(kind) for kind in sorted(available())}
    for kind, reader in known.items():
        if reader.takes(name):
            return kind
    told = ", ".join(dict.fromkeys(ending for reader in known.values() for ending in reader.endings))
    raise DataError(f"{location}: no reader takes files of this name; known endings are {told}")
