"""Local files, and those that are mounted (EOS, AFS, Lustre): whoever has a Kerberos ticket has them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew.core.files import sha256
from clew.storage.locations import local_path
from clew.storage.store import LocalFile, StoredFile, StoreWriter
from clew.storage.store_errors import ChecksumMismatchError


class LocalDisk:
    """Paths."""

    wants: tuple[str, ...] = ("sha256",)

    def files(self, location: str) -> dict[str, StoredFile]:
        path = local_path(location)
        if path.is_dir():
            below = [each for each in sorted(path.rglob("*")) if each.is_file() and not _hidden(each, path)]
            return {str(each.relative_to(path)): _held(each) for each in below}
        return {"": _held(path)} if path.exists() else {}

    def read(self, held: StoredFile, start: int, stop: int) -> bytes:
        with local_path(held.location).open("rb") as stream:
            stream.seek(start)
            return stream.read(stop - start)

    def remove(self, held: StoredFile) -> None:
        local_path(held.location).unlink()

    def checks(self, held: StoredFile) -> Mapping[str, str]:
        return {"sha256": sha256(local_path(held.location))}

    def targets(self, location: str, files: Mapping[str, LocalFile]) -> dict[str, str]:
        return {name: str(local_path(location) / name) for name in files}

    def writer(self, location: str, given: LocalFile, memory: dict[str, Any], part: int) -> StoreWriter:
        return _Writer(local_path(location), given)

    def publish(self, location: str, targets: Mapping[str, str], files: Mapping[str, LocalFile]) -> None:
        return None


class _Writer:
    """Parts of a file beside its place, renamed when whole."""

    def __init__(self, path: Path, given: LocalFile) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._given = path, given
        self._partial = path.with_name(f".{path.name}.{given.sha256[:12]}.part")
        self._partial.touch()

    def write(self, number: int, offset: int, data: bytes) -> int:
        with self._partial.open("r+b") as stream:
            stream.seek(offset)
            stream.write(data)
        return len(data)

    def close(self, receipts: Mapping[int, Any]) -> None:
        if sha256(self._partial) != self._given.sha256:
            self._partial.unlink()
            if self._path.is_file() and sha256(self._path) == self._given.sha256:  # an earlier try got as far
                return
            raise ChecksumMismatchError(f"{self._path}: checksum mismatch after writing; try again")
        with contextlib.suppress(OSError):
            os.utime(self._partial)
        self._partial.replace(self._path)

    def drop(self) -> None:
        self._partial.unlink(missing_ok=True)


def _held(path: Path) -> StoredFile:
    seen = path.stat()
    return StoredFile(str(path), seen.st_size, f"{seen.st_dev}-{seen.st_ino}-{seen.st_mtime_ns}")


def _hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)
