"""`client.artefacts`: files of runs on a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel

from clew.client.connection import Connection
from clew.core.files import sha256


class ArtefactInfo(BaseModel):
    """A file that a run made."""

    id: int
    run: int | None
    name: str
    kind: str
    """`checkpoint`, `model`, `plot`, `report`, `log` or `file`."""
    type: str
    """Its media type."""
    sha256: str
    bytes: int
    created: float


class Artefacts:
    """Checkpoints, models, plots and reports of runs.

    Example:
        >>> for artefact in client.artefacts.list(run=17, kind="model"):  # doctest: +SKIP
        ...     client.artefacts.download(17, artefact.name, "model.onnx")
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, run: int | None = None, *, kind: str | None = None) -> Iterator[ArtefactInfo]:
        """List artefacts, the newest first.

        Args:
            run: Only those of this run; None: those of all runs.
            kind: Only those of this kind.
        """
        path = "/artefacts" if run is None else f"/runs/{run}/artefacts"
        parameters = {"kind": kind} if run is None else {}
        artefacts = (ArtefactInfo.model_validate(item) for item in self._connection.pages(path, parameters))
        return (artefact for artefact in artefacts if kind in (None, artefact.kind))

    def upload(self, run: int, file: Path | str, *, name: str | None = None, kind: str = "file") -> None:
        """Add a file to a run.

        Args:
            run: The run.
            file: The file to send.
            name: Its name on the server, such as `plots/roc.json`; default: the name of the file.
            kind: `checkpoint`, `model`, `plot`, `report`, `log` or `file`.

        Raises:
            ServerError: the server does not answer, or refuses the file.
        """
        path = Path(file)
        parameters = {"kind": kind, "sha256": sha256(path)}
        self._connection.upload(f"/runs/{run}/artefacts/{quote(name or path.name)}", path, params=parameters)

    def download(self, run: int, name: str, to: Path | str) -> Path:
        """Write an artefact to a file. The file is complete, or it does not appear at all.

        Args:
            run: The run.
            name: The artefact.
            to: The file to write.

        Returns:
            The path of the file.

        Raises:
            ServerError: the server does not answer, or there is no such artefact.
        """
        path = Path(to)
        self._connection.download(f"/runs/{run}/artefacts/{quote(name)}", path, params={"save": True})
        return path
