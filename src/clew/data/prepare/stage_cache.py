"""The stage cache: results of stages on disk, by content. Several processes and hosts can share one cache.

A result is written to a temporary file and renamed, so it exists completely or not at all. A process that works on a
piece holds a lock of the operating system, which ends with the process. So does the lock of a temporary file: those of
killed processes can be told from others, and removed. The last bytes of a file are the checksum of the others, so a
damaged file is noticed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from clew.core.disk_errors import disk_reason
from clew.core.file_lock import hold_lock
from clew.core.files import write_all, write_text
from clew.data.table import Table, raw_file
from clew.data.table_cache import FOLDER
from clew.errors import ClewError, DataError
from clew.storage import InputCache

STAGES = ("read", "transforms", "prepare", FOLDER)
INPUTS = "inputs"
"""The name of the copies of inputs among the stages."""
SUFFIX = ".table"
"""The end of the names of results. Those of other tables in the cache, and of results of older versions, end in `.h5`.
"""
UNFINISHED = "unfinished"
"""The name of the folder of temporary files among the stages."""
_MARK = b"clew-crc"


class BusyError(ClewError):
    """Another process is working on this piece."""


@dataclass(frozen=True)
class CacheEntry:
    """One cached result."""

    stage: str
    key: str
    path: Path
    bytes: int
    used: float
    """When it was made or last used, in seconds since 1970."""


@dataclass(frozen=True)
class CachedResult:
    """A table from the cache, and the facts that were stored with it."""

    table: Table
    facts: dict[str, Any]


@dataclass(frozen=True)
class StageCache:
    """A folder of results: `STAGE/ab/abcdef....table`."""

    folder: Path

    def path(self, stage: str, key: str) -> Path:
        """Return the path of a result, which may not exist."""
        return self.folder / stage / key[:2] / f"{key}{SUFFIX}"

    def has(self, stage: str, key: str) -> bool:
        """Return whether a result exists."""
        return self.path(stage, key).exists()

    def get(self, stage: str, key: str, *, verify: bool = True) -> CachedResult | None:
        """Return a result, or None. A damaged file counts as none and is removed.

        Args:
            stage: Its folder.
            key: Its key.
            verify: Whether the checksum is compared. It is not needed if this preparation has just done it.
        """
        path = self.path(stage, key)
        try:
            image = _read(path, verify=verify)
            result = CachedResult(*raw_file.from_bytes(image))
        except FileNotFoundError:
            return None
        except (DataError, OSError, KeyError, TypeError, ValueError):  # a damaged file
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return result

    def put(self, stage: str, key: str, result: CachedResult) -> None:
        """Store a result.

        Raises:
            DataError: the disk is full or cannot be written.
        """
        path = self.path(stage, key)
        try:
            image = raw_file.to_bytes(result.table, result.facts)
            with self._new_file(path) as stream:
                write_all(stream.fileno(), image)
                write_all(stream.fileno(), _checksum(zlib.crc32(image)))
        except OSError as error:
            reason = disk_reason(error) or str(error)
            raise DataError(f"cannot write to the cache {self.folder}: {reason} (`clew cache prune`)") from error

    @contextlib.contextmanager
    def _new_file(self, path: Path) -> Iterator[IO[bytes]]:
        """Open a temporary file, which gets its name if the block succeeds."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / UNFINISHED / f"{path.name}.{secrets.token_hex(8)}.tmp"
        temporary.parent.mkdir(exist_ok=True)
        with _locked_file(temporary) as stream:
            try:
                yield stream
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        """Remove the temporary files of processes that were killed."""
        for path in (self.folder / UNFINISHED).glob("*.tmp"):
            with contextlib.suppress(OSError), path.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError if its process is running
                path.unlink(missing_ok=True)

    def note(self, name: str) -> Any:
        """Return a small JSON note, or None."""
        try:
            return json.loads((self.folder / "notes" / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None

    def take_note(self, name: str, value: Any) -> None:
        """Store a small JSON note. If the cache cannot be written, the note is lost."""
        with contextlib.suppress(OSError):
            write_text(self.folder / "notes" / f"{name}.json", json.dumps(value, sort_keys=True))

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[None]:
        """Hold the lock of a piece while working on it.

        Raises:
            BusyError: another process holds it.
        """
        path = self.folder / "locks" / key[:2] / key
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(path, timeout=0, required=False))
            except BlockingIOError as error:
                raise BusyError("another process works on it") from error
            stack.callback(path.unlink, missing_ok=True)
            yield

    def entries(self) -> list[CacheEntry]:
        """Return all cached results, copies of inputs included, the least recently used first."""
        entries = [
            CacheEntry(INPUTS, copy.key, copy.path, copy.bytes, copy.used) for copy in InputCache(self.folder).entries()
        ]
        for stage in STAGES:
            for path in (path for suffix in (SUFFIX, ".h5") for path in (self.folder / stage).glob(f"*/*{suffix}")):
                with contextlib.suppress(FileNotFoundError):  # removed by another process meanwhile
                    status = path.stat()
                    entries.append(CacheEntry(stage, path.stem, path, status.st_size, status.st_mtime))
        return sorted(entries, key=lambda entry: entry.used)

    def prune(self, *, older_than: float | None = None, keep: int | None = None) -> list[CacheEntry]:
        """Remove results.

        Args:
            older_than: Remove results that were not used for this many seconds.
            keep: Then remove the least recently used results until this many bytes are left.

        Returns:
            The removed entries.
        """
        self.remove_unfinished()
        entries, removed = self.entries(), []
        limit = time.time() - older_than if older_than is not None else float("-inf")
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            if entry.used < limit or (keep is not None and total > keep):
                if entry.stage != INPUTS:
                    entry.path.unlink(missing_ok=True)
                elif not InputCache(self.folder).remove(entry.key):  # another process reads it
                    continue
                total -= entry.bytes
                removed.append(entry)
        return removed


def _locked_file(path: Path) -> IO[bytes]:
    while True:
        stream = path.open("xb", buffering=0)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(stream, fcntl.LOCK_EX)
        if path.exists():
            return stream
        stream.close()  # another process removed it before it was locked


def _checksum(value: int) -> bytes:
    return _MARK + value.to_bytes(4, "little")


def _read(path: Path, *, verify: bool) -> NDArray[np.uint8]:
    """Return the content of a file without its checksum.

    Raises:
        DataError: the checksum is wrong.
    """
    content = np.fromfile(path, dtype=np.uint8)
    image, checksum = content[: -len(_checksum(0))], content[-len(_checksum(0)) :].tobytes()
    if verify and checksum != _checksum(zlib.crc32(image.data)):
        raise DataError(f"{path}: damaged")
    return image
