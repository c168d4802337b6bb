"""XRootD. Parts are written to a temporary name; the file is renamed if the server's adler32 checksum is right.

The XRootD client itself finds proxies, tokens and tickets: X509_USER_PROXY, BEARER_TOKEN, BEARER_TOKEN_FILE,
KRB5CCNAME. clew does not store them.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
import zlib
from collections.abc import Mapping
from typing import Any

from clew.storage.fsspec_store import FsspecStore
from clew.storage.store import LocalFile, StoredFile, StoreWriter
from clew.storage.store_errors import ChecksumMismatchError, error_kind

_PATIENCE = {
    "XRD_CONNECTIONWINDOW": "5",
    "XRD_CONNECTIONRETRY": "2",
    "XRD_STREAMERRORWINDOW": "10",
    "XRD_REQUESTTIMEOUT": "120",
}
"""Time-outs in seconds, and numbers of tries. The defaults of the client wait half an hour for a dead server. Variables
that are already set are not changed."""
_BLOCK = 1 << 23


class XrootdStore(FsspecStore):
    """XRootD through fsspec-xrootd; writing uses the XRootD client directly."""

    required_checksums = ("sha256", "adler32")

    def open(self, location: str) -> tuple[Any, str]:
        _prepare()
        system, path = super().open(location)
        system.dircache.clear()  # otherwise a listing is never refreshed
        return system, path

    def files(self, location: str) -> dict[str, StoredFile]:
        system, path = self.open(location)
        try:
            info = system.info(path)
        except OSError as error:
            if "[3011]" in str(error):
                return {}
            raise
        return {"": self._held(location, info)} if info["type"] == "file" else super().files(location)

    def read(self, stored: StoredFile, start: int, stop: int) -> bytes:
        """Read through a new file object each time: one that lost its server cannot be used again."""
        self.open(stored.location)
        from XRootD import client

        file = client.File()
        _check(file.open(stored.location)[0])
        status, data = file.read(start, stop - start)
        _check(status)
        file.close()
        return bytes(data)

    def checksums(self, stored: StoredFile) -> Mapping[str, str]:
        system, path = self.open(stored.location)
        try:
            algorithm, value = system.checksum(path.partition("?")[0])
        except OSError as error:
            if "[3013]" in str(error) or "not supported" in str(error):
                return {}
            raise
        return {algorithm: value.zfill(8)}

    def writer(self, location: str, source: LocalFile, memory: dict[str, Any], part: int) -> StoreWriter:
        self.open(location)
        return _XrootdWriter(self, location, source, memory)


class _XrootdWriter:
    """Writes to a temporary file in the same folder, renamed when the server's checksum equals that of the source."""

    def __init__(self, store: XrootdStore, location: str, source: LocalFile, memory: dict[str, Any]) -> None:
        from XRootD.client.flags import OpenFlags

        self._store, self._location, self._source = store, location, source
        plain, sign, query = location.partition("?")
        folder, _, name = plain.rpartition("/")
        self._partial = f"{folder}/.{name}.{source.sha256[:12]}.part{sign}{query}"
        self._lock = threading.Lock()
        self._file = self._opened(OpenFlags.UPDATE if memory.get("started") else OpenFlags.DELETE | OpenFlags.MAKEPATH)
        memory["started"] = True

    def _opened(self, flags: Any) -> Any:
        from XRootD import client

        file = client.File()
        _check(file.open(self._partial, flags)[0])
        return file

    def write(self, number: int, offset: int, data: bytes) -> int:
        from XRootD.client.flags import OpenFlags

        with self._lock:
            if self._file is None:
                self._file = self._opened(OpenFlags.UPDATE)
            file = self._file
        try:
            _check(file.write(data, offset)[0])
        except ValueError:  # closed, because another part lost the server
            self._file = None
            raise ConnectionError("Connection error") from None
        except OSError as error:
            if error_kind(error) == "gone":
                self._file = None
            raise
        return len(data)

    def close(self, receipts: Mapping[int, Any]) -> None:
        if self._file is not None:
            _check(self._file.close()[0])
        system, partial = self._store.open(self._partial)
        server_checksum = (
            self._store.checksums(StoredFile(self._partial, self._source.size)).get("adler32") or self._read_back()
        )
        if server_checksum != self._source.adler32:
            system.rm_file(partial.partition("?")[0])
            raise ChecksumMismatchError(f"{self._location}: checksum mismatch after writing; try again")
        target = system._strip_protocol(self._location).partition("?")[0]
        _check(system._myclient.mv(partial.partition("?")[0], target)[0])

    def drop(self) -> None:
        if self._file is not None:
            self._file.close()
        system, partial = self._store.open(self._partial)
        system.rm_file(partial.partition("?")[0])

    def _read_back(self) -> str:
        """The checksum of the written file, read back because the server does not compute checksums."""
        value, partial = 1, StoredFile(self._partial, self._source.size)
        for start in range(0, partial.size, _BLOCK):
            value = zlib.adler32(self._store.read(partial, start, min(start + _BLOCK, partial.size)), value)
        return f"{value:08x}"


def _check(status: Any) -> None:
    if not status.ok:
        raise OSError(status.message.strip())


_prepared = threading.Event()


def _prepare() -> None:
    if not _prepared.is_set():
        _prepared.set()
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        import XRootD.client  # noqa: F401

        # at exit XRootD inspects every object, which triggers deprecation warnings of other packages
        atexit.register(warnings.simplefilter, "ignore")
