"""The contract of a store (`Store`), and `find_store`, which returns the store of a location."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from clew.storage.locations import scheme


@dataclass(frozen=True)
class StoredFile:
    """A file in a store."""

    location: str
    size: int
    token: str = ""
    """Changes when the file is rewritten; empty if the store does not report it."""
    checksums: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Checksums that the listing contained, by algorithm."""
    replicas: tuple[str, ...] = ()
    """Locations of the same content in other stores, the nearest first."""


@dataclass(frozen=True)
class LocalFile:
    """A local file to be written to a store, with its checksums."""

    path: Path
    size: int
    sha256: str
    md5: str = ""
    adler32: str = ""
    """md5 and adler32 are empty if the store does not need them."""


class StoreWriter(Protocol):
    """Writes one file to a store in numbered parts. Parts may come in any order and from several threads."""

    def write(self, number: int, offset: int, data: bytes) -> Any:
        """Send one part.

        Returns:
            A receipt (JSON). `close` gets the receipts of all parts, also those of an earlier process that was killed.
        """

    def close(self, receipts: Mapping[int, Any]) -> None:
        """Complete the file after all parts were sent.

        Raises:
            ChecksumMismatchError: The stored content differs from the source.
        """

    def drop(self) -> None:
        """Abort: remove the parts sent so far."""


class Store(Protocol):
    """A place that holds files, read in ranges and written in parts.

    Every method may raise any exception of the store's client library; callers translate it (`one_line_errors`).
    """

    @property
    def required_checksums(self) -> tuple[str, ...]:
        """The checksums that are computed before a file is written; always contains sha256."""

    def files(self, location: str) -> dict[str, StoredFile]:
        """The files below `location` by their relative path. The path is '' if `location` is itself a file."""

    def read(self, file: StoredFile, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop` (exclusive)."""

    def remove(self, file: StoredFile) -> None:
        """Delete a file."""

    def checksums(self, file: StoredFile) -> Mapping[str, str]:
        """The checksums that the store knows, by algorithm (sha256, md5, adler32)."""

    def targets(self, location: str, files: Mapping[str, LocalFile]) -> dict[str, str]:
        """The location each file will have, by relative path ('' for a single file)."""

    def writer(self, location: str, source: LocalFile, memory: dict[str, Any], part: int) -> StoreWriter:
        """Start writing a file.

        Args:
            location: Where the file will be.
            source: The local file.
            memory: State of the writer. It is saved, so that a later process can resume the upload.
            part: Size of a part in bytes.
        """

    def publish(self, location: str, targets: Mapping[str, str], files: Mapping[str, LocalFile]) -> None:
        """Called once after all files of a folder were written, for stores that register folders."""


def find_store(location: str) -> Store:
    """The store of a location."""
    kind = scheme(location)
    if kind == "file":
        from clew.storage.local_disk import LocalDisk

        return LocalDisk()
    if kind == "s3":
        from clew.storage.s3 import S3Store

        return S3Store()
    if kind == "root":
        from clew.storage.xrootd import XrootdStore

        return XrootdStore()
    if kind == "rucio":
        from clew.storage.rucio import RucioStore

        return RucioStore()
    from clew.storage.fsspec_store import FsspecStore

    return FsspecStore()
