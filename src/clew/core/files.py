"""Write files such that other processes never see a partly written file, and compute checksums."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 1 << 20


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Provide a temporary path for writing a file or folder. It is renamed to `path` if the block succeeds.

    The temporary file is removed after any exception, Ctrl-C included: an interrupted writer leaves the old file, or
    none.

    Args:
        path: The final path. Its folder is created if it is missing.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
        >>> with atomic_path(path) as temporary:
        ...     _ = temporary.write_text("complete")
        >>> path.read_text()
        'complete'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(8)}.tmp")  # no other user can guess it
    try:
        yield temporary
        if temporary.is_dir():
            remove(path)  # a folder replaces only an empty one
        else:
            temporary.chmod(0o666 & ~_umask())  # some writers make files that only their owner can read
        temporary.replace(path)
    finally:
        remove(temporary)


def remove(path: Path) -> None:
    """Remove a file, or a folder with everything in it, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _umask() -> int:
    """Return the mask for new files. To read it by setting it would change it for other threads for a moment."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("Umask:")[2].split(maxsplit=1)[0], 8)
    except (OSError, IndexError, ValueError):  # not Linux
        now = os.umask(0o022)
        os.umask(now)
        return now


def write_text(path: Path, text: str) -> None:
    """Write a text to a file in UTF-8, completely or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_all(file: int, content: bytes | bytearray | memoryview, position: int | None = None) -> None:
    """Write all bytes to an open file.

    Args:
        file: The number of the open file.
        content: The bytes.
        position: Where they begin in the file. None continues at the current position.
    """
    left = memoryview(content).cast("B")
    while left:
        written = os.write(file, left) if position is None else os.pwrite(file, left, position)
        left, position = left[written:], None if position is None else position + written


def sha256(path: Path) -> str:
    """Return the SHA-256 of the content of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
