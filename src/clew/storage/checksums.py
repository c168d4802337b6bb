"""Checksums of files that are copied: of a local file, or of a download while its parts arrive."""

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
    """Adler-32 with the interface of hashlib."""

    def __init__(self) -> None:
        self._value = 1

    def update(self, block: bytes) -> None:
        self._value = zlib.adler32(block, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


_ALGORITHMS: Mapping[str, Callable[[], Any]] = {
    "sha256": hashlib.sha256,
    "md5": partial(hashlib.md5, usedforsecurity=False),
    "adler32": _Adler32,
}


class _RunningChecksums:
    """Several checksums of a file that is read in order. Unknown algorithms are ignored."""

    def __init__(self, names: Iterable[str]) -> None:
        self._digests = {name: _ALGORITHMS[name]() for name in names if name in _ALGORITHMS}

    def read(self, stream: IO[bytes], start: int, stop: int) -> None:
        """Add the bytes from `start` to `stop`."""
        for place in range(start, stop, _BLOCK):
            block = os.pread(stream.fileno(), min(_BLOCK, stop - place), place)
            for each in self._digests.values():
                each.update(block)

    def hex_digests(self) -> dict[str, str]:
        return {name: each.hexdigest() for name, each in self._digests.items()}


def file_checksums(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Checksums of a local file by algorithm; the file is read once."""
    sums = _RunningChecksums(names)
    with path.open("rb") as stream:
        sums.read(stream, 0, path.stat().st_size)
    return sums.hex_digests()


def local_file(path: Path, names: Iterable[str] = ("sha256",)) -> LocalFile:
    """A local file with its checksums."""
    return LocalFile(path, path.stat().st_size, **file_checksums(path, names))


class DownloadChecksums:
    """The checksums of a download, computed from the parts that are complete from the start of the file on."""

    def __init__(self, stream: IO[bytes], size: int, part: int, expected: Future[Mapping[str, str]]) -> None:
        self._stream, self._size, self._part, self._expected = stream, size, part, expected
        self._sums: _RunningChecksums | None = None
        self._next = 0

    def follow(self, parts: Container[int]) -> None:
        """Add the next part if it has arrived."""
        if self._next in parts and self._expected.done():
            self._read(min((self._next + 1) * self._part, self._size))
            self._next += 1

    def hex_digests(self) -> dict[str, str]:
        """The checksums after all parts have arrived."""
        self._read(self._size)
        assert self._sums is not None
        return self._sums.hex_digests()

    def _read(self, stop: int) -> None:
        if self._sums is None:
            self._sums = _RunningChecksums(needed_checksums(self._expected.result()))
        self._sums.read(self._stream, min(self._next * self._part, stop), stop)


def needed_checksums(algorithms: Iterable[str]) -> list[str]:
    """The checksums to compute: SHA-256 alone if it is available, else all."""
    return ["sha256"] if "sha256" in algorithms else list(algorithms)


def check_download(expected: Mapping[str, str], computed: Mapping[str, str], file: StoredFile) -> None:
    """Compare the checksums of a download with those of the store.

    Raises:
        ChecksumMismatchError: They differ.
    """
    for algorithm, value in computed.items():
        if value != expected[algorithm]:
            difference = f"{algorithm} {value}, should be {expected[algorithm]}"
            where = mask_secrets(file.location)
            raise ChecksumMismatchError(f"{where}: checksum mismatch ({difference}); the copy was removed, try again")
