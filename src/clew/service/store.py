"""Artefacts on disk, by what is in them: the same file is kept once, and a name never becomes a path."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from starlette.concurrency import run_in_threadpool

from clew.service.answers import RefusedError

_YOUNG = 3600.0
"""Seconds for which a file is kept that no artefact names: its artefact may be on the way."""


@dataclass(frozen=True)
class Blob:
    """Something that was put into the store."""

    sha256: str
    bytes: int


class Incoming:
    """Bytes on their way into a store, by whose they will be. For the thread of the event loop alone."""

    def __init__(self) -> None:
        self._bytes: Counter[int] = Counter()

    @contextlib.contextmanager
    def counted(self, owner: int, parts: AsyncIterator[bytes], *, room: int) -> Iterator[AsyncIterator[bytes]]:
        """The parts, which end with an error where all that comes in for the owner meanwhile takes more than `room`."""
        taken = 0

        async def passed() -> AsyncIterator[bytes]:
            nonlocal taken
            async for part in parts:
                taken += len(part)
                self._bytes[owner] += len(part)
                if self._bytes[owner] > room:
                    raise _full(room)
                yield part

        try:
            yield passed()
        finally:
            self._bytes[owner] -= taken
            self._bytes += Counter()  # forgets owners with nothing on the way


class Store:
    """A folder `ab/abcdef...`, and `incoming` for what is not whole yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, sha256: str) -> Path:
        """Where a content lies."""
        assert len(sha256) == 64 and sha256.isalnum(), sha256
        return self._folder / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Whether it is there."""
        return self.path(sha256).is_file()

    async def put(self, parts: AsyncIterator[bytes], *, most: int, expected: str | None = None) -> Blob:
        """Keep what comes in; it is there whole or not at all.

        Raises:
            RefusedError: it is larger than `most` bytes, or not what was `expected`.
        """
        incoming = self._folder / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        path, digest, size = incoming / secrets.token_hex(16), hashlib.sha256(), 0
        try:
            with path.open("wb") as file:
                async for part in parts:
                    size += len(part)
                    if size > most:
                        raise _full(most)
                    await run_in_threadpool(_add, file.write, digest.update, part)
                await run_in_threadpool(_settle, file)
            found = digest.hexdigest()
            if expected is not None and found != expected:
                raise RefusedError(
                    422, "what arrived is not what was announced: its SHA-256 differs", do="send it again"
                )
            self.path(found).parent.mkdir(parents=True, exist_ok=True)
            path.replace(self.path(found))  # the same content, and now a young file
        finally:
            path.unlink(missing_ok=True)
        return Blob(found, size)

    def settled(self) -> Iterator[str]:
        """All contents that are not on their way into an artefact."""
        found = (path.name for path in self._folder.glob("??/*"))
        return (name for name in found if len(name) == 64 and name.isalnum() and self.old(name))

    def old(self, sha256: str) -> bool:
        """Whether it is not on its way into an artefact."""
        path = self.path(sha256)
        return not path.is_file() or time.time() - path.stat().st_mtime > _YOUNG

    def drop(self, sha256: str) -> None:
        """Remove a content that no artefact names, unless it came in only just now."""
        if self.old(sha256):
            self.path(sha256).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what was broken off long ago."""
        for path in (self._folder / "incoming").glob("*"):
            if time.time() - path.stat().st_mtime > 24 * _YOUNG:
                path.unlink(missing_ok=True)


def _full(room: int) -> RefusedError:
    return RefusedError(413, f"there is room for {room:,} bytes", do="delete artefacts, or ask for more")


def _add(write: Callable[[bytes], int], update: Callable[[bytes], None], part: bytes) -> None:
    write(part)
    update(part)


def _settle(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
