"""Copies of inputs on this machine: what was fetched once is read from disk until room is needed.

Any number of processes share them. Who reads one holds a lock that the kernel drops with the process, and what is held
is never removed; the least recently used go first. A copy is trusted while its size and time are those it was written
with, and read again otherwise.
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
from clew.storage.transfer import ProgressCallback, copy
from clew.storage.transfer_state import cache_folder

LIMIT = 50_000_000_000
"""Bytes, where nobody said otherwise (`clew cache limit`)."""
_FRESH = 30.0
"""Seconds for which a process believes what a store said of a location."""


@dataclass(frozen=True)
class CachedCopy:
    """One cached input: a file or a folder."""

    key: str
    location: str
    path: Path
    bytes: int
    used: float
    """When it was made or last used, seconds since 1970."""


_watches: list[ProgressCallback] = []


@contextlib.contextmanager
def report_transfers(watch: ProgressCallback) -> Iterator[None]:
    """Within, every copy that this process fetches is reported."""
    _watches.append(watch)
    try:
        yield
    finally:
        _watches.remove(watch)


class InputCache:
    """The copies in one cache folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or cache_folder()) / "inputs"
        self._asked: dict[str, tuple[float, dict[str, StoredFile]]] = {}

    @property
    def limit(self) -> int:
        """Most bytes that copies may take together."""
        try:
            return int((self.folder / "limit").read_text())
        except (OSError, ValueError):
            return LIMIT

    @limit.setter
    def limit(self, most: int) -> None:
        write_text(self.folder / "limit", f"{most}\n")
        self.make_room(0)

    @contextlib.contextmanager
    def held(self, location: str, *, watch: ProgressCallback | None = None) -> Iterator[Path | None]:
        """The local copy of a file or folder, fetched if need be and kept while in use.

        None where it cannot be kept: the store does not say when it changes, or it is larger than the room there is.

        Raises:
            DataError: it is not there, or cannot be fetched.
        """
        files = self._files(location)
        size = sum(each.size for each in files.values())
        if not all(each.token for each in files.values()) or size > self.limit:
            yield None
            return
        key = _key(location, files)
        while True:
            with self._locked(key, shared=True):
                if self._whole(key, files):
                    with contextlib.suppress(OSError):
                        os.utime(self._facts(key))
                    yield self._path(key, location)
                    return
            with self._locked(key):
                if not self._whole(key, files) and not self._fetch(key, location, files, size, watch):
                    yield None
                    return

    def sha256(self, location: str) -> str:
        """The hash of a file's content, known from when it was fetched; empty where there is no copy."""
        facts = self._read(_key(location, self._files(location)))
        return str(facts.get("sha256", {}).get("", "")) if facts else ""

    def entries(self) -> list[CachedCopy]:
        """All copies, the least recently used first."""
        found = []
        for path in self.folder.glob("*/facts.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                facts, used = json.loads(path.read_text()), path.stat().st_mtime
                found.append(CachedCopy(path.parent.name, facts["location"], path.parent, facts["bytes"], used))
        return sorted([*found, *self._cut({each.key for each in found})], key=lambda each: each.used)

    def _cut(self, whole: set[str]) -> Iterator[CachedCopy]:
        """What is left of fetches that did not end: the same one goes on with it, if it comes before room is needed."""
        for path in self.folder.glob("*/wanted"):
            if path.parent.name not in whole:
                with contextlib.suppress(OSError):
                    files = [each.stat() for each in (path.parent / "data").rglob("*") if each.is_file()]
                    used = max((each.st_mtime for each in files), default=path.stat().st_mtime)
                    there = sum(512 * each.st_blocks for each in files)
                    yield CachedCopy(path.parent.name, f"{path.read_text()} (a part)", path.parent, there, used)

    def make_room(self, size: int, *, beside: str = "") -> bool:
        """Remove the least recently used that nobody holds until `size` more bytes fit; whether they do.

        `beside` is what the room is for: what is there of it already does not count.
        """
        entries, most = [each for each in self.entries() if each.key != beside], self.limit - size
        total = sum(each.bytes for each in entries)
        for each in entries:
            if total > most and self.remove(each.key):
                total -= each.bytes
        return total <= most

    def remove(self, key: str) -> bool:
        """Remove a copy, if nobody holds it."""
        try:
            with self._locked(key, timeout=0):
                self._facts(key).unlink(missing_ok=True)  # first: without it the rest is nothing
                shutil.rmtree(self.folder / key, ignore_errors=True)
                return True
        except BlockingIOError:
            return False

    def _files(self, location: str) -> dict[str, StoredFile]:
        asked, files = self._asked.get(location, (0.0, {}))
        if time.monotonic() - asked > _FRESH:
            with one_line_errors(location):
                files = store.find_store(location).files(location)
            if not files:
                kind = "no such DID" if locations.scheme(location) == "rucio" else "no such file"
                raise DataError(f"{locations.mask_secrets(location)}: cannot be read ({kind})")
            self._asked[location] = time.monotonic(), files
        return files

    def _fetch(
        self, key: str, location: str, files: dict[str, StoredFile], size: int, watch: ProgressCallback | None
    ) -> bool:
        if not self.make_room(size, beside=key):
            return False
        path = self._path(key, location)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / key / "wanted", locations.mask_secrets(location))
        copy(location, path, watch=watch or (_watches[-1] if _watches else None), replace=True)
        paths = {name: path / name if name else path for name in files}
        facts = {
            "location": locations.mask_secrets(location),
            "bytes": size,
            "sha256": {name: sha256(each) for name, each in paths.items()},
            "seen": {name: _seen(each) for name, each in paths.items()},
        }
        write_text(self._facts(key), json.dumps(facts))
        return True

    def _whole(self, key: str, files: dict[str, StoredFile]) -> bool:
        """Whether a copy is there as it was written; one that was touched since is read and compared."""
        facts = self._read(key)
        if facts is None:
            return False
        base = self._path(key, facts["location"])
        for name, seen in facts["seen"].items():
            path = base / name if name else base
            if not path.is_file() or (_seen(path) != seen and sha256(path) != facts["sha256"][name]):
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
    said = [location, *(f"{name} {each.size} {each.token}" for name, each in sorted(files.items()))]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:32]


def _seen(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
