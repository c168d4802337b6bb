"""Reads files of events with the reader that fits them."""

from __future__ import annotations

from typing import Literal

from clew import Section, readers
from clew.data.readers import FilePieces
from clew.errors import DataError

TREE_OF_READER = {"edm4hep": "events", "pfnano": "Events", "delphes_root": "Delphes"}
"""The tree of a ROOT file, by the reader of such files."""


class ParticleFlowDataConfig(Section):
    """The source of elements and targets."""

    reader: Literal["auto", "delphes", "delphes_root", "edm4hep", "pfnano", "table"] = "auto"
    """`delphes`: pickles of the public set. `delphes_root`: ROOT files of Delphes. `edm4hep`: ROOT files of FCC and
    others. `pfnano`: ROOT files of CMS. `table`: HDF5 or any other file with the columns `elements` and `targets`, such
    as generated events. `auto`: chosen from the file."""
    links: bool = False
    """Whether elements get the features of `links.py`: momenta and energies of the tracks and towers in their cell of
    the calorimeter and around it. The published network has none."""


def read_events(path: str, data: ParticleFlowDataConfig | None = None) -> FilePieces:
    """Read the events of a file in pieces.

    Args:
        path: The file.
        data: Which reader to use. Default: chosen from the file.

    Raises:
        DataError: No reader fits the file.
    """
    kind = (data or ParticleFlowDataConfig()).reader
    reader = _find_reader(path) if kind == "auto" else kind
    return readers.read(path) if reader == "table" else readers.read(path, reader)


def _find_reader(path: str) -> str:
    ending = readers.kind_of(path)
    if ending == "pickle":
        return "delphes"
    if ending != "root":
        return "table"
    for kind, tree in TREE_OF_READER.items():
        if _has_tree(path, tree):
            return kind
    expected = ", ".join(f"'{tree}' ({kind})" for kind, tree in TREE_OF_READER.items())
    raise DataError(f"{path}: a ROOT file without a tree of a known name: {expected}")


def _has_tree(path: str, tree: str) -> bool:
    """Return whether a file has a tree. Problems of reading are reported later, by its reader."""
    try:
        return bool(readers.read(path, "root", tree=tree).plan)
    except DataError as error:
        if str(error).startswith(("no tree", "no events")):
            return False
        raise DataError(f"{path}: {error}") from error
