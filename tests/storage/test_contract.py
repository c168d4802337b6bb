"""The contract of stores, for those that need no server."""

from __future__ import annotations

from pathlib import Path

from clew.storage.fsspec_store import FsspecStore
from clew.storage.local_disk import LocalDisk
from clew.testing import StoreContract


class TestLocalDisk(StoreContract):
    store = LocalDisk

    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "store")


class TestFsspec(StoreContract):
    store = FsspecStore

    def location(self, tmp_path: Path) -> str:
        return f"memory://contract{tmp_path}"
