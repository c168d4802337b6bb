"""Copies SQLite's write-ahead log into the database in a thread of its own, so that no commit waits for it.

SQLite would do it in every commit that finds a thousand pages in the log: the writer then waits for two more flushes of
the disk, and all requests wait behind it.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from pathlib import Path

_LOG = logging.getLogger("clew.server")
_SECONDS = 2.0
"""Seconds between two copies."""
_RESTART_PAGES = 16_000
"""Pages in the log (64 MB) after which it must begin again at its start. Otherwise it grows while there is load."""


class WalCheckpointer:
    """Copies the log of one database every two seconds until `stop`."""

    def __init__(self, path: Path, *, restart_pages: int = _RESTART_PAGES) -> None:
        self._path = path
        self._restart_pages = restart_pages
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="checkpoints", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()

    def _loop(self) -> None:
        # no timeout: a copy that would make the writer wait for a reader is tried again later instead
        with contextlib.closing(sqlite3.connect(self._path, timeout=0, isolation_level=None)) as connection:
            while not self._stopping.wait(_SECONDS):
                try:
                    copy_log(connection, restart_pages=self._restart_pages)
                except sqlite3.Error as error:  # for instance a full disk: commits report it
                    _LOG.warning("the write-ahead log was not copied: %s", error)


def copy_log(connection: sqlite3.Connection, *, restart_pages: int) -> bool:
    """Copy the log into the database while the writer goes on writing.

    Args:
        connection: A connection that waits for nothing (`timeout=0`).
        restart_pages: With more pages in the log, also copy what was added meanwhile, which the writer waits for, and
            let the log begin again.

    Returns:
        Whether the log begins again.
    """
    _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if pages < restart_pages:
        return False
    blocked, _, _ = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
    return not blocked
