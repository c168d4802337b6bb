"""Datasets that exist already: found by their key, and used instead of being prepared again."""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from clew import storage
from clew.core.files import atomic_path
from clew.data.dataset import Dataset
from clew.data.dataset.manifest import MANIFEST
from clew.errors import DataError

REGISTERED = "server"
"""Names the datasets that are registered on a server, among the places where `clew prepare --reuse` looks."""


def dataset_location(store: str, key: str) -> str:
    """Return where a store that holds several datasets has the one with a key.

    Example:
        >>> dataset_location("s3://bucket/mine", "0123456789abcdef0123")
        's3://bucket/mine/dataset-0123456789abcdef'
    """
    return storage.join(store, f"dataset-{key[:16]}")


def key_at(location: str) -> str:
    """Return the key of the dataset at a location; empty if there is none.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    try:
        return str(json.loads(storage.read(location, MANIFEST))["key"])
    except storage.StoreUnavailableError:
        raise
    except (DataError, ValueError, KeyError):
        return ""


def find_dataset(key: str, places: Sequence[str]) -> str | None:
    """Return where the dataset with a key is; None if it is at none of the places.

    Args:
        key: The key of its content.
        places: Datasets, folders of datasets, globs of folders (`/agent/jobs/*/output/*`), or stores.
    """
    for place in places:
        candidates = _in_store(place, key) if storage.is_url(place) else _in_folders(place)
        for location in candidates:
            if _has(location, key):
                return location
    return None


def fetch_dataset(location: str, output: Path) -> None:
    """Bring a dataset to a folder that does not exist yet. Files of the same disk are linked, others are copied.

    Raises:
        DataError: The dataset cannot be copied.
    """
    if storage.is_url(location):
        storage.copy(location, output)
        return
    with atomic_path(output) as temporary:
        shutil.copytree(storage.local_path(location), temporary, copy_function=_link_or_copy)


def _in_store(place: str, key: str) -> Iterator[str]:
    yield place
    yield dataset_location(place, key)


def _in_folders(place: str) -> Iterator[str]:
    path = str(storage.local_path(place))
    for pattern in (f"{path}/{MANIFEST}", f"{path}/*/{MANIFEST}"):
        yield from (str(Path(file).parent) for file in sorted(glob.glob(pattern)))  # noqa: PTH207 - absolute patterns


def _has(location: str, key: str) -> bool:
    """Whether the complete dataset with a key is at a location. A place that does not answer has none."""
    try:
        if key_at(location) != key:
            return False
        return storage.is_url(location) or Dataset(location).complete
    except DataError:
        return False


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, target)
    return target
