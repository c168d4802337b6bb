"""Contents of artefacts, stored by their SHA-256 in a folder or any store that `clew.storage` supports.

The same content is stored once, and the name of an artefact never becomes a path.
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
from clew.server.problems import RequestError
from clew.storage import store

_LOG = logging.getLogger("clew.server")
_OWNER_FILE = "clew-service.txt"
"""The file that says which server uses a location."""
_NEW_SECONDS = 3600.0
"""Seconds for which a content without an artefact is kept: its artefact may be added soon."""


@dataclass(frozen=True)
class StoredContent:
    """A content that was added to the store."""

    sha256: str
    bytes: int


class IncomingUploads:
    """Bytes of unfinished uploads, by owner. Only the event loop's thread uses it."""

    def __init__(self) -> None:
        self._bytes: Counter[int] = Counter()

    @contextlib.contextmanager
    def limited(self, owner: int, parts: AsyncIterator[bytes], *, limit: int) -> Iterator[AsyncIterator[bytes]]:
        """Limit an upload.

        Args:
            owner: The user whose quota counts.
            parts: The parts of the upload.
            limit: Bytes that all unfinished uploads of the owner may have together.

        Yields:
            The parts; they end with a `RequestError` (413) at the limit.
        """
        received = 0

        async def limited_parts() -> AsyncIterator[bytes]:
            nonlocal received
            async for part in parts:
                received += len(part)
                self._bytes[owner] += len(part)
                if self._bytes[owner] > limit:
                    raise _too_large(limit)
                yield part

        try:
            yield limited_parts()
        finally:
            self._bytes[owner] -= received
            self._bytes += Counter()  # removes owners without unfinished uploads


class ArtefactStore:
    """Contents at `ab/abcdef...` in a folder, or below any URL that `clew.storage` supports.

    One server uses a location. It remembers the contents of the last hour and does not delete them.
    """

    def __init__(self, location: str | Path, scratch: Path) -> None:
        """Prepare a store.

        Args:
            location: A folder or a URL.
            scratch: A local folder for unfinished uploads to a URL.
        """
        self.location = str(location)
        self._folder = None if storage.is_url(self.location) else storage.local_path(self.location)
        self._incoming = (self._folder or scratch) / "incoming"
        self._added: dict[str, float] = {}

    def claim(self, name: str) -> None:
        """Reserve the location for the server `name`. Two servers would delete each other's contents.

        Raises:
            ConfigError: another server uses the location, or it cannot be reached.
        """
        file = storage.join(self.location, _OWNER_FILE)
        try:
            if self._stored_file(file) is None:
                with tempfile.TemporaryDirectory() as folder:
                    (Path(folder) / _OWNER_FILE).write_text(name)
                    storage.copy(Path(folder) / _OWNER_FILE, file)
            owner = storage.read(file).decode()
        except DataError as error:
            raise ConfigError(f"--store: {error}") from None
        if owner != name:
            shown = storage.mask_secrets(self.location)
            raise ConfigError(
                f"--store {shown}: another server uses it (see {_OWNER_FILE} there); name another location, or remove "
                "that file if the other server does not exist any more"
            )

    def path(self, sha256: str) -> Path | None:
        """Return the file of a content; None if the store is not a local folder."""
        assert len(sha256) == 64 and sha256.isalnum(), sha256
        return None if self._folder is None else self._folder / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Return whether the store has a content."""
        path = self.path(sha256)
        return path.is_file() if path is not None else self._stored_file(self._url(sha256)) is not None

    def read(self, sha256: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return a content, or its bytes from `start` to `stop`.

        Raises:
            FileNotFoundError: the store does not have it.
            RequestError: the store does not answer (503).
        """
        path = self.path(sha256)
        if path is not None:
            with path.open("rb") as file:
                file.seek(start)
                return file.read() if stop is None else file.read(stop - start)
        url = self._url(sha256)
        with _store_errors():
            stored = self._stored_file(url) if stop is None else store.StoredFile(url, stop)
            if stored is None:
                raise FileNotFoundError(sha256)
            with storage.one_line_errors(url):
                return store.find_store(url).read(stored, start, stored.size)

    def _url(self, sha256: str) -> str:
        return storage.join(self.location, f"{sha256[:2]}/{sha256}")

    def _stored_file(self, url: str) -> store.StoredFile | None:
        with storage.one_line_errors(url):
            return store.find_store(url).files(url).get("")

    async def put(self, parts: AsyncIterator[bytes], *, limit: int, expected: str | None = None) -> StoredContent:
        """Add a content. It appears in the store only when it is complete.

        Args:
            parts: The content.
            limit: Bytes it may have.
            expected: The SHA-256 that it must have.

        Raises:
            RequestError: it is too large, its SHA-256 differs, or the store does not answer.
        """
        self._incoming.mkdir(parents=True, exist_ok=True)
        path, digest, size = self._incoming / secrets.token_hex(16), hashlib.sha256(), 0
        try:
            with path.open("wb") as file:
                async for part in parts:
                    size += len(part)
                    if size > limit:
                        raise _too_large(limit)
                    await run_in_threadpool(_add, file.write, digest.update, part)
                await run_in_threadpool(_sync, file)
            sha256 = digest.hexdigest()
            if expected is not None and sha256 != expected:
                error = "what arrived is not what was announced: its SHA-256 differs"
                raise RequestError(422, error, hint="send it again")
            self._added[sha256] = time.monotonic()  # before it is in the store, so that retention does not delete it
            await run_in_threadpool(self._move_in, path, sha256)
            self._added[sha256] = time.monotonic()
        finally:
            path.unlink(missing_ok=True)
        return StoredContent(sha256, size)

    def _move_in(self, file: Path, sha256: str) -> None:
        path = self.path(sha256)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            file.replace(path)
            return
        with _store_errors():
            storage.copy(file, self._url(sha256))

    def settled(self) -> Iterator[str]:
        """Return the SHA-256 of all contents that are not new."""
        if self._folder is not None:
            names = [path.name for path in self._folder.glob("??/*")]
        else:
            with _store_errors(), storage.one_line_errors(self.location):
                names = [name.rpartition("/")[2] for name in store.find_store(self.location).files(self.location)]
        return (name for name in names if len(name) == 64 and name.isalnum() and not self.is_new(name))

    def is_new(self, sha256: str) -> bool:
        """Return whether a content was added in the last hour, so that its artefact may still be added."""
        return time.monotonic() - self._added.get(sha256, -math.inf) < _NEW_SECONDS

    def delete(self, sha256: str) -> None:
        """Delete a content without an artefact, unless it is new."""
        if self.is_new(sha256):
            return
        path = self.path(sha256)
        if path is not None:
            path.unlink(missing_ok=True)
            return
        with _store_errors():
            stored = self._stored_file(self._url(sha256))
            if stored is not None:
                with storage.one_line_errors(self.location, "removed"):
                    store.find_store(self.location).remove(stored)

    def clean_up(self) -> None:
        """Delete uploads that were interrupted more than a day ago, and forget which contents were new."""
        for path in self._incoming.glob("*"):
            if time.time() - path.stat().st_mtime > 24 * _NEW_SECONDS:
                path.unlink(missing_ok=True)
        self._added = {sha256: moment for sha256, moment in self._added.items() if self.is_new(sha256)}


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    """Answer 503 if the store fails: the client cannot do anything about it."""
    try:
        yield
    except DataError as error:
        _LOG.error("the store: %s", error)
        raise RequestError(
            503, "the store of artefacts does not answer", hint="try again soon", retry_after=5
        ) from error


def _too_large(limit: int) -> RequestError:
    return RequestError(413, f"there is room for {limit:,} bytes", hint="delete artefacts, or ask for more")


def _add(write: Callable[[bytes], int], update: Callable[[bytes], None], part: bytes) -> None:
    write(part)
    update(part)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
