"""The local disk, including mounted file systems such as EOS, AFS and Lustre."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clew.core.files import sha256
from clew.core.private_files import open_own_part
from clew.storage.locations import local_path
from clew.storage.store import LocalFile, StoredFile, StoreWriter
from clew.storage.store_errors import ChecksumMismatchError


class LocalDisk:
    """Files on the local disk."""

    required_checksums: tuple[str, ...] = ("sha256",)

    def files(self, location: str) -> dict[str, StoredFile]:
        path = local_path(location)
        if path.is_dir():
            below = [each for each in sorted(path.rglob("*")) if each.is_file() and not _is_hidden(each, path)]
            return {str(each.relative_to(path)): _stored_file(each) for each in below}
        return {"": _stored_file(path)} if path.exists() else {}

    def read(self, file: StoredFile, start: int, stop: int) -> bytes:
        with local_path(file.location).open("rb") as stream:
            stream.seek(start)
            return stream.read(stop - start)

    def remove(self, file: StoredFile) -> None:
        local_path(file.location).unlink()

    def checksums(self, file: StoredFile) -> Mapping[str, str]:
        return {"sha256": sha256(local_path(file.location))}

    def targets(self, location: str, files: Mapping[str, LocalFile]) -> dict[str, str]:
        return {name: str(local_path(location) / name) for name in files}

    def writer(self, location: str, source: LocalFile, memory: dict[str, Any], part: int) -> StoreWriter:
        return _LocalWriter(local_path(location), source)

    def publish(self, location: str, targets: Mapping[str, str], files: Mapping[str, LocalFile]) -> None:
        return None


class _LocalWriter:
    """Writes the parts to a hidden file in the same folder and renames it when it is complete."""

    def __init__(self, path: Path, source: LocalFile) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._source = path, source
        self._partial = path.with_name(f".{path.name}.{source.sha256[:12]}.part")
        open_own_part(self._partial).close()

    def write(self, number: int, offset: int, data: bytes) -> int:
        with open_own_part(self._partial) as stream:
            stream.seek(offset)
            stream.write(data)
        return len(data)

    def close(self, receipts: Mapping[int, Any]) -> None:
        if sha256(self._partial) != self._source.sha256:
            self._partial.unlink()
            if self._path.is_file() and sha256(self._path) == self._source.sha256:  # an earlier try completed the file
                return
            raise ChecksumMismatchError(f"{self._path}: checksum mismatch after writing; try again")
        with contextlib.suppress(OSError):
            os.utime(self._partial)
        self._partial.replace(self._path)

    def drop(self) -> None:
        self._partial.unlink(missing_ok=True)


def _stored_file(path: Path) -> StoredFile:
    status = path.stat()
    return StoredFile(str(path), status.st_size, f"{status.st_dev}-{status.st_ino}-{status.st_mtime_ns}")


def _is_hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)
