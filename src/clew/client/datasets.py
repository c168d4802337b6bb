"""`client.datasets`: datasets that are registered on a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from clew.client.connection import Connection
from clew.errors import DataError


class DatasetInfo(BaseModel):
    """A registered dataset."""

    id: int
    key: str
    """The key of its content, as in its manifest."""
    name: str
    location: str
    """Where its files are."""
    created: float


class Datasets:
    """The catalogue of datasets. The samples stay where they are; the server has only the manifests.

    Example:
        >>> dataset = client.datasets.register("/data/tracking")  # doctest: +SKIP
        >>> client.jobs.submit(submission("tracking", dataset=dataset.key))  # doctest: +SKIP
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Iterator[DatasetInfo]:
        """List all datasets, the newest first."""
        return (DatasetInfo.model_validate(item) for item in self._connection.pages("/datasets"))

    def register(self, folder: Path | str, *, name: str | None = None, group: str | None = None) -> DatasetInfo:
        """Register a dataset on the server; jobs may then name it by its key.

        Args:
            folder: A folder that `clew prepare` made.
            name: Its name on the server; default: the name of the folder.
            group: A group that may see it.

        Raises:
            DataError: the folder is not a dataset.
            ServerError: the server does not answer, or refuses it.
        """
        path = Path(folder).absolute()
        file = path / "manifest.json"
        if not file.is_file():
            raise DataError(f"{folder}: no dataset there (no manifest.json); `clew prepare` makes one")
        manifest = json.loads(file.read_text())
        body = {"key": manifest["key"], "name": name or path.name, "location": str(path), "manifest": manifest}
        return DatasetInfo.model_validate(self._connection.call("POST", "/datasets", body={**body, "group": group}))
