"""Which reader takes a file of events."""

from __future__ import annotations

from typing import Any, Literal

from clew import Section, readers
from clew.errors import DataError
from clew.readers import Pieces
from clew.recipes.particleflow.edm4hep import RECO
from clew.recipes.particleflow.pfnano import SEEN


class Data(Section):
    """Where elements and targets come from."""

    reader: Literal["auto", "delphes", "edm4hep", "pfnano", "table"] = "auto"
    """`delphes`: pickles of the public set; `edm4hep`: ROOT files of FCC; `pfnano`: of CMS; `table`: HDF5 or any other
    with `elements` and `targets`, such as generated events. `auto` looks."""


def read(path: str, data: Data | None = None) -> Pieces:
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
    for kind, tree, branch in (("edm4hep", "events", f"{RECO}.energy"), ("pfnano", "Events", f"{SEEN}_pt")):
        if _has(path, tree, branch):
            return kind
    raise DataError("a ROOT file of neither EDM4hep (tree 'events') nor PFNano (tree 'Events')")


def _has(path: str, tree: str, branch: str) -> bool:
    """Whether a tree has a branch; whether the file is readable at all is for the reader to say."""
    wanted: dict[str, Any] = {"tree": tree, "columns": (branch,), "chunk": 1}
    try:
        return bool(readers.read(path, "root", **wanted)[:1])
    except DataError as error:
        if str(error).startswith(("no tree", "no branch", "no events")):
            return False
        raise
