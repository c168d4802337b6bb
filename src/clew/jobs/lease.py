"""Leases: work that is assigned for a while. A lease is a file on a file system that both sides see."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from clew.core.files import write_text
from clew.errors import LeaseError, RunError

_BEAT = 0.5
"""Seconds between two heartbeats."""


class Lease:
    """Work assigned to a holder.

    The lease is valid as long as its file exists. The modification time of the file is the holder's heartbeat. Text in
    the file asks the holder to stop, and says why.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = False
        """Whether it was revoked, as of the holder's last heartbeat."""
        self.stop_reason = ""
        """Why the holder must stop; '' to continue."""
        self._next = 0.0

    def grant(self) -> None:
        """Assign the work; from now on missing heartbeats count.

        Raises:
            RunError: it was assigned before.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.path.touch(exist_ok=False)
        except FileExistsError:
            raise RunError(f"{self.path}: assigned before") from None

    def beat(self, *, now: bool = False) -> None:
        """Send the holder's heartbeat and read requests to stop; cheap enough for every step."""
        moment = time.monotonic()
        if moment < self._next and not now:
            return
        self._next = moment + _BEAT
        try:
            os.utime(self.path, follow_symlinks=False)
            self.stop_reason = self.path.read_text() if self.path.stat().st_size else ""
        except FileNotFoundError:
            self.lost = True

    def last_heartbeat(self) -> float | None:
        """The time of the last heartbeat by the clock of the file system; None where the lease was revoked."""
        try:
            return self.path.stat().st_mtime
        except FileNotFoundError:
            return None

    def request_stop(self, reason: str) -> None:
        """Ask the holder to stop, ready to be resumed."""
        write_text(self.path, reason)

    def revoke(self) -> None:
        """Revoke it; its holder must not write any more."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


@contextlib.contextmanager
def sole_attempt(folder: Path, lease: Lease | None) -> Iterator[None]:
    """Create a folder in the block, which another attempt at the same work may create at the same time.

    Args:
        folder: The folder that the block creates.
        lease: The lease of this attempt, or None if there can be no other.

    Raises:
        LeaseError: Another attempt still writes the folder, so this one is to be repeated; or this one has lost its
            lease. Then the folder is removed.
    """
    try:
        yield
    except RunError:
        if lease is not None and folder.exists():
            raise LeaseError(f"{folder}: an earlier attempt still writes it") from None
        raise
    if lease is not None:
        lease.beat(now=True)
        if lease.lost:
            shutil.rmtree(folder, ignore_errors=True)
            raise LeaseError(f"{lease.path}: this run was assigned to another process before it started")
