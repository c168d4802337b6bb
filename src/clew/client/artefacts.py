"""Artefacts of a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel

from clew.client.connection import Link
from clew.core.files import sha256


class ArtefactInfo(BaseModel):
    """Something that a run made."""

    id: int
    run: int | None
    name: str
    kind: str
    type: str
    sha256: str
    bytes: int
    created: float


class Artefacts:
    """Checkpoints, models, plots, reports."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def list(self, run: int | None = None, *, kind: str | None = None) -> Iterator[ArtefactInfo]:
        """Those of a run, or all of a kind, the newest first."""
        path = "/artefacts" if run is None else f"/runs/{run}/artefacts"
        asked = {"kind": kind} if run is None else {}
        found = (ArtefactInfo.model_validate(each) for each in self._link.pages(path, asked))
        return (each for each in found if kind in (None, each.kind))

    def upload(self, run: int, file: Path | str, *, name: str | None = None, kind: str = "file") -> None:
        """Add a file to a run."""
        path = Path(file)
        asked = {"kind": kind, "sha256": sha256(path)}
        self._link.upload(f"/runs/{run}/artefacts/{quote(name or path.name)}", path, params=asked)

    def download(self, run: int, name: str, to: Path | str) -> Path:
        """Write one to a file, whole or not at all."""
        path = Path(to)
        self._link.download(f"/runs/{run}/artefacts/{quote(name)}", path, params={"save": True})
        return path
