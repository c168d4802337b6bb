"""Artefacts by what is in them, in a folder or any store that `clew.storage` knows: the same is kept once, and a name
never becomes a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from starlette.concurrency import run_in_threadpool

from clew import storage
from clew.errors import ConfigError, DataError
from clew.server.problems import RefusedError
from clew.storage import store

_LOG = logging.getLogger("clew.server")
_MARK = "clew-service.txt"
"""Says whose a place is."""
_YOUNG = 3600.0
"""Seconds for which a content is kept that no artefact names: its artefact may be on the way."""


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
    """Contents at `ab/abcdef...` in a folder, or below any URL that `clew.storage` knows. One server has it: what it
    took in during the last hour it remembers, and drops nothing of that.
    """

    def __init__(self, location: str | Path, scratch: Path) -> None:
        """`scratch`: a folder of this machine, for what is not whole yet on its way to a URL."""
        self.location = str(location)
        self._folder = None if storage.is_url(self.location) else storage.local_path(self.location)
        self._incoming = (self._folder or scratch) / "incoming"
        self._fresh: dict[str, float] = {}

    def claim(self, name: str) -> None:
        """Have the place be this server's, as whoever else kept contents there would drop those of the other.

        Raises:
            ConfigError: it is another's, or cannot be reached.
        """
        mark = storage.join(self.location, _MARK)
        try:
            if self._held(mark) is None:
                with tempfile.TemporaryDirectory() as folder:
                    (Path(folder) / _MARK).write_text(name)
                    storage.copy(Path(folder) / _MARK, mark)
            owner = storage.read(mark).decode()
        except DataError as error:
            raise ConfigError(f"--store: {error}") from None
        if owner != name:
            told = "name another place, or remove that file if the server is no more"
            raise ConfigError(
                f"--store {storage.mask_secrets(self.location)}: {_MARK} says that it is another server's; {told}"
            )

    def path(self, sha256: str) -> Path | None:
        """Where a content lies; None where that is not on this machine."""
        assert len(sha256) == 64 and sha256.isalnum(), sha256
        return None if self._folder is None else self._folder / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Whether it is there."""
        path = self.path(sha256)
        return path.is_file() if path is not None else self._held(self._place(sha256)) is not None

    def read(self, sha256: str, start: int = 0, stop: int | None = None) -> bytes:
        """A content, or bytes start to stop of it.

        Raises:
            FileNotFoundError: it is not there.
            RefusedError: the store does not answer.
        """
        path = self.path(sha256)
        if path is not None:
            with path.open("rb") as file:
                file.seek(start)
                return file.read() if stop is None else file.read(stop - start)
        place = self._place(sha256)
        with _asked():
            held = self._held(place) if stop is None else store.StoredFile(place, stop)
            if held is None:
                raise FileNotFoundError(sha256)
            with storage.one_line_errors(place):
                return store.find_store(place).read(held, start, held.size)

    def _place(self, sha256: str) -> str:
        return storage.join(self.location, f"{sha256[:2]}/{sha256}")

    def _held(self, place: str) -> store.StoredFile | None:
        with storage.one_line_errors(place):
            return store.find_store(place).files(place).get("")

    async def put(self, parts: AsyncIterator[bytes], *, most: int, expected: str | None = None) -> Blob:
        """Keep what comes in; it is there whole or not at all.

        Raises:
            RefusedError: it is larger than `most` bytes, or not what was `expected`; or the store does not answer.
        """
        self._incoming.mkdir(parents=True, exist_ok=True)
        path, digest, size = self._incoming / secrets.token_hex(16), hashlib.sha256(), 0
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
            self._fresh[found] = time.monotonic()  # before it is there: nobody drops it
            await run_in_threadpool(self._keep, path, found)
            self._fresh[found] = time.monotonic()
        finally:
            path.unlink(missing_ok=True)
        return Blob(found, size)

    def _keep(self, path: Path, sha256: str) -> None:
        place = self.path(sha256)
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
            return
        with _asked():
            storage.copy(path, self._place(sha256))

    def settled(self) -> Iterator[str]:
        """All contents that are not on their way into an artefact."""
        if self._folder is not None:
            names = [path.name for path in self._folder.glob("??/*")]
        else:
            with _asked(), storage.one_line_errors(self.location):
                names = [name.rpartition("/")[2] for name in store.find_store(self.location).files(self.location)]
        return (name for name in names if len(name) == 64 and name.isalnum() and not self.fresh(name))

    def fresh(self, sha256: str) -> bool:
        """Whether it came in only just now, and may be on its way into an artefact."""
        return time.monotonic() - self._fresh.get(sha256, -math.inf) < _YOUNG

    def drop(self, sha256: str) -> None:
        """Remove a content that no artefact names, unless it came in only just now."""
        if self.fresh(sha256):
            return
        path = self.path(sha256)
        if path is not None:
            path.unlink(missing_ok=True)
            return
        with _asked():
            held = self._held(self._place(sha256))
            if held is not None:
                with storage.one_line_errors(self.location, "removed"):
                    store.find_store(self.location).remove(held)

    def tidy(self) -> None:
        """Remove what was broken off long ago, and forget what is not new any more."""
        for path in self._incoming.glob("*"):
            if time.time() - path.stat().st_mtime > 24 * _YOUNG:
                path.unlink(missing_ok=True)
        self._fresh = {sha256: moment for sha256, moment in self._fresh.items() if self.fresh(sha256)}


@contextlib.contextmanager
def _asked() -> Iterator[None]:
    """A store elsewhere that fails is nothing that who asks can mend."""
    try:
        yield
    except DataError as error:
        _LOG.error("the store: %s", error)
        raise RefusedError(503, "the store of artefacts does not answer", do="try again soon", wait=5) from error


def _full(room: int) -> RefusedError:
    return RefusedError(413, f"there is room for {room:,} bytes", do="delete artefacts, or ask for more")


def _add(write: Callable[[bytes], int], update: Callable[[bytes], None], part: bytes) -> None:
    write(part)
    update(part)


def _settle(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
