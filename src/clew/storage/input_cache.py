"""Local copies of remote inputs. A fetched input is read from disk until the space is needed.

Any number of processes share the cache. A process that reads a copy holds a lock, which the kernel releases when the
process ends. A locked copy is never removed; the least recently used ones are removed first. If size or modification
time of a copy have changed, its checksum is computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.core.file_lock import hold_lock
from clew.core.files import sha256, write_text
from clew.errors import DataError
from clew.storage import locations, store
from clew.storage.store import StoredFile
from clew.storage.store_errors import one_line_errors
from clew.storage.transfer import copy
from clew.storage.transfer_state import ProgressCallback, cache_folder

DEFAULT_LIMIT = 50_000_000_000
"""Bytes; `clew cache limit` changes it."""
_LISTING_SECONDS = 30.0
"""Seconds for which a listing of a store is reused."""


@dataclass(frozen=True)
class CachedCopy:
    """One cached input: a file or a folder."""

    key: str
    location: str
    path: Path
    bytes: int
    used: float
    """Time of last use, in seconds since 1970."""


_callbacks: list[ProgressCallback] = []


@contextlib.contextmanager
def report_transfers(watch: ProgressCallback) -> Iterator[None]:
    """Inside the block, report the progress of every download of this process to `watch`."""
    _callbacks.append(watch)
    try:
        yield
    finally:
        _callbacks.remove(watch)


class InputCache:
    """The copies in one cache folder.

    Args:
        folder: The cache folder; default `cache_folder()`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or cache_folder()) / "inputs"
        self._listings: dict[str, tuple[float, dict[str, StoredFile]]] = {}

    @property
    def limit(self) -> int:
        """Maximum total size of the copies in bytes."""
        try:
            return int((self.folder / "limit").read_text())
        except (OSError, ValueError):
            return DEFAULT_LIMIT

    @limit.setter
    def limit(self, bytes_allowed: int) -> None:
        write_text(self.folder / "limit", f"{bytes_allowed}\n")
        self.free_space(0)

    @contextlib.contextmanager
    def local_copy(self, location: str, *, watch: ProgressCallback | None = None) -> Iterator[Path | None]:
        """The local copy of a file or folder. It is downloaded if necessary and not removed inside the block.

        Yields:
            The path; None if it cannot be cached, because the store reports no changes or it exceeds the limit.

        Raises:
            DataError: It does not exist or cannot be downloaded.
        """
        files = self._files(location)
        size = sum(each.size for each in files.values())
        if not all(each.token for each in files.values()) or size > self.limit:
            yield None
            return
        key = _key(location, files)
        while True:
            with self._locked(key, shared=True):
                if self._is_complete(key, files):
                    with contextlib.suppress(OSError):
                        os.utime(self._facts(key))
                    yield self._path(key, location)
                    return
            with self._locked(key):
                if not self._is_complete(key, files) and not self._fetch(key, location, files, size, watch):
                    yield None
                    return

    def sha256(self, location: str) -> str:
        """The SHA-256 of a cached file, computed when it was downloaded; empty if there is no copy."""
        facts = self._read(_key(location, self._files(location)))
        return str(facts.get("sha256", {}).get("", "")) if facts else ""

    def entries(self) -> list[CachedCopy]:
        """All copies, sorted by last use, the oldest first."""
        copies = []
        for path in self.folder.glob("*/facts.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                facts, used = json.loads(path.read_text()), path.stat().st_mtime
                copies.append(CachedCopy(path.parent.name, facts["location"], path.parent, facts["bytes"], used))
        return sorted([*copies, *self._incomplete({each.key for each in copies})], key=lambda each: each.used)

    def _incomplete(self, complete: set[str]) -> Iterator[CachedCopy]:
        """Incomplete downloads. A later download of the same input resumes them."""
        for path in self.folder.glob("*/wanted"):
            if path.parent.name not in complete:
                with contextlib.suppress(OSError):
                    files = [each.stat() for each in (path.parent / "data").rglob("*") if each.is_file()]
                    used = max((each.st_mtime for each in files), default=path.stat().st_mtime)
                    size = sum(512 * each.st_blocks for each in files)
                    yield CachedCopy(path.parent.name, f"{path.read_text()} (a part)", path.parent, size, used)

    def free_space(self, size: int, *, excluding: str = "") -> bool:
        """Remove the least recently used copies that are not in use until `size` more bytes fit.

        Args:
            size: Bytes needed.
            excluding: Key of the copy that needs the space; what exists of it does not count.

        Returns:
            True if there is enough space now.
        """
        entries, allowed = [entry for entry in self.entries() if entry.key != excluding], self.limit - size
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            if total > allowed and self.remove(entry.key):
                total -= entry.bytes
        return total <= allowed

    def remove(self, key: str) -> bool:
        """Remove a copy. Returns False if it is in use."""
        try:
            with self._locked(key, timeout=0):
                self._facts(key).unlink(missing_ok=True)  # first: without this file the copy is invalid
                shutil.rmtree(self.folder / key, ignore_errors=True)
                return True
        except BlockingIOError:
            return False

    def _files(self, location: str) -> dict[str, StoredFile]:
        listed_at, files = self._listings.get(location, (0.0, {}))
        if time.monotonic() - listed_at > _LISTING_SECONDS:
            with one_line_errors(location):
                files = store.find_store(location).files(location)
            if not files:
                kind = "no such DID" if locations.scheme(location) == "rucio" else "no such file"
                raise DataError(f"{locations.mask_secrets(location)}: cannot be read ({kind})")
            self._listings[location] = time.monotonic(), files
        return files

    def _fetch(
        self, key: str, location: str, files: dict[str, StoredFile], size: int, watch: ProgressCallback | None
    ) -> bool:
        if not self.free_space(size, excluding=key):
            return False
        path = self._path(key, location)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / key / "wanted", locations.mask_secrets(location))
        copy(location, path, watch=watch or (_callbacks[-1] if _callbacks else None), replace=True)
        paths = {name: path / name if name else path for name in files}
        facts = {
            "location": locations.mask_secrets(location),
            "bytes": size,
            "sha256": {name: sha256(each) for name, each in paths.items()},
            "seen": {name: _size_and_time(each) for name, each in paths.items()},
        }
        write_text(self._facts(key), json.dumps(facts))
        return True

    def _is_complete(self, key: str, files: dict[str, StoredFile]) -> bool:
        """True if a copy is complete and unchanged. If its size or time changed, the checksum decides."""
        facts = self._read(key)
        if facts is None:
            return False
        base = self._path(key, facts["location"])
        for name, recorded in facts["seen"].items():
            path = base / name if name else base
            if not path.is_file() or (_size_and_time(path) != recorded and sha256(path) != facts["sha256"][name]):
                self._facts(key).unlink(missing_ok=True)
                return False
        return True

    def _read(self, key: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self._facts(key).read_text()))
        except (OSError, ValueError):
            return None

    def _facts(self, key: str) -> Path:
        return self.folder / key / "facts.json"

    def _path(self, key: str, location: str) -> Path:
        return self.folder / key / "data" / locations.base_name(location)

    def _locked(
        self, key: str, *, shared: bool = False, timeout: float | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """The lock of one copy."""
        return hold_lock(self.folder / "locks" / key, shared=shared, timeout=timeout)


def _key(location: str, files: dict[str, StoredFile]) -> str:
    parts = [location, *(f"{name} {each.size} {each.token}" for name, each in sorted(files.items()))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _size_and_time(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
