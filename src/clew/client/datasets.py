"""`client.datasets`: datasets that are registered on a server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel

from clew import storage
from clew.client.connection import Connection
from clew.errors import DataError, ServerError

DATASET_KEY = re.compile(r"[0-9a-f]{16,64}")
"""The form of a dataset's key."""


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

    def locations(self, key: str) -> Sequence[str]:
        """Return where the dataset with a key was registered, the newest first.

        Args:
            key: The key of its content, as in its manifest.

        Returns:
            Folders and URLs; empty if no dataset with this key is registered.
        """
        try:
            return list(self._connection.call("GET", f"/datasets/key/{quote(key)}")["locations"])
        except ServerError as error:
            if error.status == 404:
                return []
            raise

    def register(self, folder: Path | str, *, name: str | None = None, group: str | None = None) -> DatasetInfo:
        """Register a dataset on the server; jobs may then name it by its key.

        Args:
            folder: A folder that `clew prepare` made, or its URL in a store.
            name: Its name on the server; default: the name of the folder.
            group: A group that may see it.

        Raises:
            DataError: the folder is not a dataset.
            ServerError: the server does not answer, or refuses it.
        """
        location = storage.absolute_location(str(folder))
        try:
            manifest = json.loads(storage.read(location, "manifest.json"))
        except storage.StoreUnavailableError:
            raise
        except DataError:
            hint = "no dataset there (no manifest.json); `clew prepare` makes one"
            raise DataError(f"{storage.mask_secrets(location)}: {hint}") from None
        body = {"key": manifest["key"], "name": name or storage.base_name(location), "location": location}
        body["manifest"] = manifest
        return DatasetInfo.model_validate(self._connection.call("POST", "/datasets", body={**body, "group": group}))
