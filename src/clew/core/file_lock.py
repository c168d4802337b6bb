"""Locks between processes.

- `hold_lock` takes a lock of the operating system (`flock`). It ends with the process that holds it. Use it for files
  of one host.
- `FileLock` is a lock that consists of a file. It works on shared file systems too. Studies use it, because their
  processes run on several hosts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from clew.core.process import is_identity_running, process_identity

_STALE_AFTER = 30.0
"""Seconds after which the lock of a process on another host is taken to be left over."""
_POLL = 0.1
"""Seconds between two attempts to take a lock of the operating system."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""What a file system without locks answers."""


@contextlib.contextmanager
def hold_lock(
    path: Path, *, shared: bool = False, timeout: float | None = None, required: bool = True, mode: int = 0o666
) -> Iterator[None]:
    """Hold the lock of a file while the block runs.

    The file and its folder are created if they are missing. The content of the file is not changed, and the file stays:
    if it were removed, two processes could hold the locks of two different files. A symbolic link is not followed.

    Args:
        path: The file to lock.
        shared: Take a shared lock: several processes can hold it at the same time, while none holds an exclusive one.
        timeout: Seconds to wait for the lock. None waits without limit, 0 does not wait.
        required: Whether a file system without locks is an error. If not, the block runs without a lock there.
        mode: Permissions of the file if it is created.

    Raises:
        BlockingIOError: another process still holds the lock after `timeout` seconds.
        OSError: the file cannot be opened, or the file system has no locks and the lock is required.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "lock"
        >>> with hold_lock(path):
        ...     try:
        ...         with hold_lock(path, timeout=0):
        ...             print("both hold it")
        ...     except BlockingIOError:
        ...         print("held by another")
        held by another
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        try:
            _flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, timeout)
        except BlockingIOError:
            raise
        except OSError as error:
            if required or error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


def _flock(descriptor: int, kind: int, timeout: float | None) -> None:
    if timeout is None:
        fcntl.flock(descriptor, kind)
        return
    end = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError) as error:  # some file systems answer "permission denied"
            if time.monotonic() >= end:
                raise BlockingIOError(errno.EWOULDBLOCK, "another process holds the lock") from error
        time.sleep(_POLL)


class FileLock:
    """A lock that is held by the process that created the file. The file contains the identity of that process.

    The lock of a process that has ended is free at once if that process ran on this host, and after 30 s otherwise.
    Optuna's journal storage accepts this class as its lock.

    Args:
        path: The file that is the lock. Its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity = process_identity()

    def acquire(self) -> bool:
        """Wait until this process holds the lock.

        Returns:
            Always True, as Optuna expects.

        Raises:
            OSError: the file cannot be created (disk full, no such folder).
        """
        candidate = self._path.with_name(f".{self._path.name}.{secrets.token_hex(6)}")
        candidate.write_text(self._identity)
        try:
            self._wait(candidate)
        finally:
            candidate.unlink(missing_ok=True)
        return True

    def release(self) -> None:
        """Release the lock. Nothing happens if another process has taken it over."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.read_text() == self._identity:
                self._path.unlink()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock while the block runs."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def _wait(self, candidate: Path) -> None:
        pause, last_holder, since = 0.001, "", time.monotonic()
        while True:
            try:
                os.link(candidate, self._path)
                return
            except FileExistsError:
                holder = _read(self._path)
            if holder != last_holder:
                last_holder, since = holder, time.monotonic()
            if holder and (not is_identity_running(holder) or time.monotonic() - since > _STALE_AFTER):
                self._remove_stale(holder)
                continue
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _remove_stale(self, holder: str) -> None:
        """Remove the lock of `holder`, and no other: another process may have taken it meanwhile."""
        aside = self._path.with_name(f".{self._path.name}.{secrets.token_hex(6)}")
        with contextlib.suppress(FileNotFoundError):
            self._path.rename(aside)
            if _read(aside) != holder:
                with contextlib.suppress(FileExistsError):
                    os.link(aside, self._path)
            aside.unlink()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
