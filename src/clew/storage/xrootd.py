"""XRootD: parts are written in place under another name; the server tells its adler32, which decides.

Proxies, tokens and tickets are found by the XRootD client itself: X509_USER_PROXY, BEARER_TOKEN, BEARER_TOKEN_FILE,
KRB5CCNAME. Nothing of them is kept.
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
"""Seconds and tries; the client's own would wait half an hour for a server that is gone. Those set already stay."""
_BLOCK = 1 << 23


class XrootdStore(FsspecStore):
    """By fsspec-xrootd, and the client's own calls for writing."""

    wants = ("sha256", "adler32")

    def open(self, location: str) -> tuple[Any, str]:
        _prepare()
        system, path = super().open(location)
        system.dircache.clear()  # it would never look again
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

    def read(self, held: StoredFile, start: int, stop: int) -> bytes:
        """By a file of its own each time: one that has lost its server is of no use to anybody."""
        self.open(held.location)
        from XRootD import client

        file = client.File()
        _check(file.open(held.location)[0])
        status, data = file.read(start, stop - start)
        _check(status)
        file.close()
        return bytes(data)

    def checks(self, held: StoredFile) -> Mapping[str, str]:
        system, path = self.open(held.location)
        try:
            algorithm, value = system.checksum(path.partition("?")[0])
        except OSError as error:
            if "[3013]" in str(error) or "not supported" in str(error):
                return {}
            raise
        return {algorithm: value.zfill(8)}

    def writer(self, location: str, given: LocalFile, memory: dict[str, Any], part: int) -> StoreWriter:
        self.open(location)
        return _Writer(self, location, given, memory)


class _Writer:
    """A file beside its place, renamed when the server's checksum is that of the original."""

    def __init__(self, store: XrootdStore, location: str, given: LocalFile, memory: dict[str, Any]) -> None:
        from XRootD.client.flags import OpenFlags

        self._store, self._location, self._given = store, location, given
        plain, sign, query = location.partition("?")
        folder, _, name = plain.rpartition("/")
        self._partial = f"{folder}/.{name}.{given.sha256[:12]}.part{sign}{query}"
        self._lock = threading.Lock()
        self._file = self._opened(OpenFlags.UPDATE if memory.get("begun") else OpenFlags.DELETE | OpenFlags.MAKEPATH)
        memory["begun"] = True

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
        except ValueError:  # closed, as another part has lost the server
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
        theirs = self._store.checks(StoredFile(self._partial, self._given.size)).get("adler32") or self._read_back()
        if theirs != self._given.adler32:
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
        """Where the server does not know its checksums."""
        value, held = 1, StoredFile(self._partial, self._given.size)
        for start in range(0, held.size, _BLOCK):
            value = zlib.adler32(self._store.read(held, start, min(start + _BLOCK, held.size)), value)
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

        # at the end XRootD looks at every object there is, deprecated ones of other packages included
        atexit.register(warnings.simplefilter, "ignore")
