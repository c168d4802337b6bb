"""Checksums of files that travel: computed while they are read, or while they arrive."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import IO, Any

from clew.storage.locations import mask_secrets
from clew.storage.store import LocalFile, StoredFile
from clew.storage.store_errors import ChecksumMismatchError

_BLOCK = 1 << 20


class _Adler32:
    """As those of hashlib are."""

    def __init__(self) -> None:
        self._value = 1

    def update(self, block: bytes) -> None:
        self._value = zlib.adler32(block, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


_CHECKS: Mapping[str, Callable[[], Any]] = {
    "sha256": hashlib.sha256,
    "md5": partial(hashlib.md5, usedforsecurity=False),
    "adler32": _Adler32,
}


class _Sums:
    """Checksums of a file that is read from its beginning on; those that are not known here are left out."""

    def __init__(self, names: Iterable[str]) -> None:
        self._made = {name: _CHECKS[name]() for name in names if name in _CHECKS}

    def read(self, stream: IO[bytes], start: int, stop: int) -> None:
        """Take in bytes start to stop."""
        for place in range(start, stop, _BLOCK):
            block = os.pread(stream.fileno(), min(_BLOCK, stop - place), place)
            for each in self._made.values():
                each.update(block)

    def found(self) -> dict[str, str]:
        return {name: each.hexdigest() for name, each in self._made.items()}


def file_checksums(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Checksums of a local file, read once."""
    sums = _Sums(names)
    with path.open("rb") as stream:
        sums.read(stream, 0, path.stat().st_size)
    return sums.found()


def local_file(path: Path, names: Iterable[str] = ("sha256",)) -> LocalFile:
    """A local file with the checksums that a store wants."""
    return LocalFile(path, path.stat().st_size, **file_checksums(path, names))


class DownloadChecksums:
    """The checksums of a file whose parts arrive: what is there from its beginning on is read back meanwhile."""

    def __init__(self, stream: IO[bytes], size: int, part: int, known: Future[Mapping[str, str]]) -> None:
        self._stream, self._size, self._part, self._known = stream, size, part, known
        self._sums: _Sums | None = None
        self._next = 0

    def follow(self, parts: Container[int]) -> None:
        """Read one part more, if it is there."""
        if self._next in parts and self._known.done():
            self._read(min((self._next + 1) * self._part, self._size))
            self._next += 1

    def found(self) -> dict[str, str]:
        """All parts are there: read the rest."""
        self._read(self._size)
        assert self._sums is not None
        return self._sums.found()

    def _read(self, stop: int) -> None:
        if self._sums is None:
            self._sums = _Sums(needed_checksums(self._known.result()))
        self._sums.read(self._stream, min(self._next * self._part, stop), stop)


def needed_checksums(known: Iterable[str]) -> list[str]:
    """Of checksums, those worth computing: beside SHA-256 no other tells anything."""
    return ["sha256"] if "sha256" in known else list(known)


def check_download(known: Mapping[str, str], ours: Mapping[str, str], held: StoredFile) -> None:
    """That a copy is what the store says it is, where it says so."""
    for algorithm, value in ours.items():
        if value != known[algorithm]:
            told = f"{algorithm} {value}, should be {known[algorithm]}"
            where = mask_secrets(held.location)
            raise ChecksumMismatchError(f"{where}: checksum mismatch ({told}); the copy was removed, try again")
