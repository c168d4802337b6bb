"""Datasets that a server knows of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from clew.client.connection import Link
from clew.errors import DataError


class DatasetInfo(BaseModel):
    """A dataset: what it is and where it lies."""

    id: int
    key: str
    name: str
    location: str
    created: float


class Datasets:
    """The catalogue; samples stay where they are."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def list(self) -> Iterator[DatasetInfo]:
        """All, the newest first."""
        return (DatasetInfo.model_validate(each) for each in self._link.pages("/datasets"))

    def register(self, folder: Path | str, *, name: str | None = None, group: str | None = None) -> DatasetInfo:
        """Have the server know a dataset: jobs may then name it by its key.

        Raises:
            DataError: none is there.
        """
        path = Path(folder).absolute()
        file = path / "manifest.json"
        if not file.is_file():
            raise DataError(f"{folder}: no dataset there (no manifest.json); `clew prepare` makes one")
        manifest = json.loads(file.read_text())
        body = {"key": manifest["key"], "name": name or path.name, "location": str(path), "manifest": manifest}
        return DatasetInfo.model_validate(self._link.call("POST", "/datasets", body={**body, "group": group}))
