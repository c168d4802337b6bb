"""Which reader takes a file of events."""

from __future__ import annotations

from typing import Literal

from clew import Section, readers
from clew.data.readers import FilePieces
from clew.errors import DataError

TREES = {"edm4hep": "events", "pfnano": "Events"}
"""Of ROOT files."""


class Data(Section):
    """Where elements and targets come from."""

    reader: Literal["auto", "delphes", "edm4hep", "pfnano", "table"] = "auto"
    """`delphes`: pickles of the public set; `edm4hep`: ROOT files of FCC; `pfnano`: of CMS; `table`: HDF5 or any other
    with `elements` and `targets`, such as generated events. `auto` looks."""


def read(path: str, data: Data | None = None) -> FilePieces:
    """The events of a file in pieces.

    Raises:
        DataError: it is none that is known.
    """
    kind = (data or Data()).reader
    chosen = _kind(path) if kind == "auto" else kind
    return readers.read(path) if chosen == "table" else readers.read(path, chosen)


def _kind(path: str) -> str:
    ending = readers.kind_of(path)
    if ending == "pickle":
        return "delphes"
    if ending != "root":
        return "table"
    for kind, tree in TREES.items():
        if _has(path, tree):
            return kind
    told = " nor ".join(f"'{tree}' ({kind})" for kind, tree in TREES.items())
    raise DataError(f"{path}: a ROOT file with neither a tree {told}")


def _has(path: str, tree: str) -> bool:
    """Whether a file has a tree; whether it can be read at all is for the reader to say."""
    try:
        return bool(readers.read(path, "root", tree=tree).plan)
    except DataError as error:
        if str(error).startswith(("no tree", "no events")):
            return False
        raise DataError(f"{path}: {error}") from error
