"""A lock that is a file: safe on shared file systems, and free at once when its holder on this host has died."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

_GRACE = 30.0
"""Seconds after which a lock held on another host is taken to be left over."""


class FileLock:
    """Held by whoever made the file; it says who that is. Optuna's journal takes one too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = identity()

    def acquire(self) -> bool:
        """Wait until it is ours.

        Raises:
            OSError: the file cannot be made (no room, no such folder).
        """
        own = self._path.with_name(f".{self._path.name}.{secrets.token_hex(6)}")
        own.write_text(self._own)
        try:
            self._wait(own)
        finally:
            own.unlink(missing_ok=True)
        return True

    def release(self) -> None:
        """Give it back; nothing happens if somebody took it from us."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.read_text() == self._own:
                self._path.unlink()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """It is ours while the block runs."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def _wait(self, own: Path) -> None:
        pause, seen, since = 0.001, "", time.monotonic()
        while True:
            try:
                os.link(own, self._path)
                return
            except FileExistsError:
                holder = _read(self._path)
            if holder != seen:
                seen, since = holder, time.monotonic()
            if holder and (not alive(holder) or time.monotonic() - since > _GRACE):
                self._break(holder)
                continue
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _break(self, holder: str) -> None:
        """Take away what a dead holder left, and nothing else: another may have been faster."""
        aside = self._path.with_name(f".{self._path.name}.{secrets.token_hex(6)}")
        with contextlib.suppress(FileNotFoundError):
            self._path.rename(aside)
            if _read(aside) != holder:
                with contextlib.suppress(FileExistsError):
                    os.link(aside, self._path)
            aside.unlink()


def identity() -> str:
    """This process, as others can look it up: host, number, and when it began."""
    return f"{socket.gethostname()} {os.getpid()} {psutil.Process().create_time():.2f}"


def alive(holder: str) -> bool:
    """Whether a process still runs; one on another host is taken to."""
    host, pid, created = holder.split()
    if host != socket.gethostname():
        return True
    try:
        process = psutil.Process(int(pid))
        return abs(process.create_time() - float(created)) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
