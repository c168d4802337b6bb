"""Results of stages on disk, by content. Any number of processes and hosts may share one cache.

A result is written under a temporary name and renamed, so it is there whole or not at all. Who works on a piece holds a
lock that the kernel drops when the process ends, however it ends: no dead process can keep one.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py

from clew.core.file_lock import hold_lock
from clew.core.files import atomic, write_text
from clew.data.table import Table, hdf5
from clew.data.table_cache import KIND
from clew.errors import ClewError, DataError
from clew.storage import InputCache

STAGES = ("read", "transforms", "prepare", KIND)
INPUTS = "inputs"
"""What the copies of inputs are called among them."""


class BusyError(ClewError):
    """Somebody else is working on this piece right now."""


@dataclass(frozen=True)
class Entry:
    """One cached result."""

    stage: str
    key: str
    path: Path
    bytes: int
    used: float
    """When it was made or last used, seconds since 1970."""


@dataclass(frozen=True)
class Cache:
    """A folder of results: `STAGE/ab/abcdef....h5`."""

    folder: Path

    def path(self, stage: str, key: str) -> Path:
        """Where a result is, or would be."""
        return self.folder / stage / key[:2] / f"{key}.h5"

    def has(self, stage: str, key: str) -> bool:
        """Whether a result is there."""
        return self.path(stage, key).exists()

    def get(self, stage: str, key: str) -> Table | None:
        """A result, or None. A damaged file counts as none and is removed."""
        path = self.path(stage, key)
        try:
            table = hdf5.load(path)
        except DataError:
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return table

    def facts(self, stage: str, key: str) -> dict[str, Any]:
        """What was stored beside a result."""
        with h5py.File(self.path(stage, key), "r") as file:
            return dict(json.loads(file.attrs["facts"]))

    def put(self, stage: str, key: str, table: Table, facts: dict[str, Any] | None = None) -> None:
        """Store a result.

        Raises:
            DataError: the disk is full or cannot be written.
        """
        path = self.path(stage, key)
        try:
            with atomic(path) as temporary, h5py.File(temporary, "w") as file:
                hdf5.write(table, file)
                file.attrs["facts"] = json.dumps(facts or {}, sort_keys=True)
        except OSError as error:
            raise DataError(f"cannot write to the cache {self.folder}: {error}; see `clew cache prune`") from error

    def note(self, name: str) -> Any:
        """A small JSON note, or None."""
        try:
            return json.loads((self.folder / "notes" / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None

    def take_note(self, name: str, value: Any) -> None:
        """Keep a small JSON note. A cache that cannot be written loses it."""
        with contextlib.suppress(OSError):
            write_text(self.folder / "notes" / f"{name}.json", json.dumps(value, sort_keys=True))

    @contextlib.contextmanager
    def claim(self, key: str) -> Iterator[None]:
        """Hold a piece while working on it.

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

    def entries(self) -> list[Entry]:
        """Everything cached, copies of inputs included, least recently used first."""
        found = [
            Entry(INPUTS, each.key, each.path, each.bytes, each.used) for each in InputCache(self.folder).entries()
        ]
        for stage in STAGES:
            for path in (self.folder / stage).glob("*/*.h5"):
                with contextlib.suppress(FileNotFoundError):  # pruned by somebody else meanwhile
                    seen = path.stat()
                    found.append(Entry(stage, path.stem, path, seen.st_size, seen.st_mtime))
        return sorted(found, key=lambda entry: entry.used)

    def prune(self, *, older_than: float | None = None, keep: int | None = None) -> list[Entry]:
        """Remove what was not used for `older_than` seconds, then the least recently used down to `keep` bytes."""
        left, gone = self.entries(), []
        limit = time.time() - older_than if older_than is not None else float("-inf")
        total = sum(entry.bytes for entry in left)
        for entry in left:
            if entry.used < limit or (keep is not None and total > keep):
                if entry.stage != INPUTS:
                    entry.path.unlink(missing_ok=True)
                elif not InputCache(self.folder).remove(entry.key):  # somebody reads it
                    continue
                total -= entry.bytes
                gone.append(entry)
        return gone
