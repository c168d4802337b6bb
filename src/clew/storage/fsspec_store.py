"""Any store that fsspec supports: read in ranges, written as whole files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew.errors import DataError
from clew.storage.locations import join, mask_secrets
from clew.storage.store import LocalFile, StoredFile, StoreWriter

_CHANGE_KEYS = (
    "ETag",
    "etag",
    "md5Hash",
    "mtime",
    "LastModified",
    "last_modified",
    "Last-Modified",
    "updated",
    "created",
)
"""What stores say of a file that a rewrite changes, the surest first."""


def change_token(info: Mapping[str, Any]) -> str:
    """A value that changes when a file is rewritten; empty if the store reports none."""
    return next((str(info[key]) for key in _CHANGE_KEYS if info.get(key)), "")


def check_no_reference(location: str) -> None:
    """Check that a location does not name a reference file system of fsspec.

    Its description is a file from anywhere. It can name any file of this machine as a part of another, and earlier
    versions of fsspec execute the templates in it.

    Raises:
        DataError: It does.
    """
    if any(part.partition("://")[0] == "reference" for part in location.split("::")):
        raise DataError(f"{mask_secrets(location)}: references of fsspec are not read; copy the files that they name")


class FsspecStore:
    """A store accessed through fsspec alone. Subclasses add parts, checksums and names."""

    required_checksums: tuple[str, ...] = ("sha256",)
    options: Mapping[str, Any] = {}

    def open(self, location: str) -> tuple[Any, str]:
        """The fsspec file system of a location, and the path in it."""
        import fsspec

        check_no_reference(location)
        system, path = fsspec.core.url_to_fs(location, **self.options)
        return system, str(path)

    def files(self, location: str) -> dict[str, StoredFile]:
        system, path = self.open(location)
        if system.isfile(path):
            return {"": self._held(location, system.info(path))}
        entries = system.find(path, detail=True) if system.isdir(path) else {}
        base = path.rstrip("/") + "/"
        below = {str(name).removeprefix(base): info for name, info in entries.items() if info["type"] == "file"}
        return {name: self._held(join(location, name), info) for name, info in sorted(below.items())}

    def _held(self, location: str, info: Mapping[str, Any]) -> StoredFile:
        return StoredFile(location, int(info["size"]), change_token(info))

    def read(self, file: StoredFile, start: int, stop: int) -> bytes:
        system, path = self.open(file.location)
        return bytes(system.cat_file(path, start=start, end=stop))

    def remove(self, file: StoredFile) -> None:
        system, path = self.open(file.location)
        system.rm_file(path.partition("?")[0])

    def checksums(self, file: StoredFile) -> Mapping[str, str]:
        return file.checksums

    def targets(self, location: str, files: Mapping[str, LocalFile]) -> dict[str, str]:
        return {name: join(location, name) if name else location for name in files}

    def writer(self, location: str, source: LocalFile, memory: dict[str, Any], part: int) -> StoreWriter:
        system, path = self.open(location)
        return _WholeFileWriter(system, path, source.path)

    def publish(self, location: str, targets: Mapping[str, str], files: Mapping[str, LocalFile]) -> None:
        return None


class _WholeFileWriter:
    """Writes the whole file in `close`: fsspec has no other way that works for every store."""

    def __init__(self, system: Any, path: str, source: Path) -> None:
        self._system, self._path, self._source = system, path, source

    def write(self, number: int, offset: int, data: bytes) -> None:
        return None

    def close(self, receipts: Mapping[int, Any]) -> None:
        self._system.makedirs(self._path.rpartition("/")[0], exist_ok=True)
        self._system.put_file(str(self._source), self._path)
        if self._system.info(self._path)["size"] != self._source.stat().st_size:
            raise DataError(f"{self._path}: the file was written incompletely; try again")

    def drop(self) -> None:
        return None
