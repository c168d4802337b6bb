"""The contract of a store, and which of them a location is in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from clew.storage.locations import scheme


@dataclass(frozen=True)
class StoredFile:
    """A file that a store holds."""

    location: str
    size: int
    token: str = ""
    """Changes when the file is written again; empty where the store does not say."""
    checks: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Checksums that came with the listing, by algorithm."""
    replicas: tuple[str, ...] = ()
    """Other locations of the same bytes, the nearest first; the first of all where there are any."""


@dataclass(frozen=True)
class LocalFile:
    """A local file on its way to a store."""

    path: Path
    size: int
    sha256: str
    md5: str = ""
    adler32: str = ""
    """Empty where the store does not want them."""


class StoreWriter(Protocol):
    """One file on its way into a store, in numbered parts. Parts may come in any order and from several threads."""

    def write(self, number: int, offset: int, data: bytes) -> Any:
        """Send a part; what is returned (JSON) is handed to `close`, by this process or one that goes on later."""

    def close(self, receipts: Mapping[int, Any]) -> None:
        """All parts are there: make them the file, if they are what was sent.

        Raises:
            MismatchError: they are not.
        """

    def drop(self) -> None:
        """It will not be gone on with: take away the parts that are there."""


class Store(Protocol):
    """Where files lie. Every method may raise what the store's client raises; callers turn that into one line."""

    @property
    def wants(self) -> tuple[str, ...]:
        """The checksums of a file that is put there; sha256 among them."""

    def files(self, location: str) -> dict[str, StoredFile]:
        """The files there by their path below `location`; a file of that very name has the path ''."""

    def read(self, held: StoredFile, start: int, stop: int) -> bytes:
        """Bytes start to stop."""

    def remove(self, held: StoredFile) -> None:
        """Take a file away."""

    def checks(self, held: StoredFile) -> Mapping[str, str]:
        """The checksums the store knows, by algorithm (sha256, md5, adler32)."""

    def targets(self, location: str, files: Mapping[str, LocalFile]) -> dict[str, str]:
        """Where each of these files will lie; the path '' is a file alone."""

    def writer(self, location: str, given: LocalFile, memory: dict[str, Any], part: int) -> StoreWriter:
        """Begin to write a file in parts of so many bytes, or go on by `memory`, what an earlier writer left in it."""

    def publish(self, location: str, targets: Mapping[str, str], files: Mapping[str, LocalFile]) -> None:
        """All files of a folder are there: say so, where the store has to be told."""


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
