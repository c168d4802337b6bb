"""Files that only this user can read or replace, on a machine that several users share.

A folder for temporary files belongs to everybody: another user can create a file there under the name that clew is
about to use. What is read from such a file must not be trusted, so files that processes of one user exchange are in a
folder that only this user can enter. A file is also refused if it is a symbolic link or belongs to another user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import IO

from clew.errors import DataError, RunError


def private_folder() -> Path:
    """Return the folder for temporary files of this user. It is created if it is missing.

    Returns:
        `clew-UID` in the folder for temporary files (`TMPDIR`), with mode 0700.

    Raises:
        RunError: another user made it, or others can enter it.

    Example:
        >>> oct(private_folder().stat().st_mode & 0o777)
        '0o700'
    """
    folder = Path(tempfile.gettempdir()) / f"clew-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        hint = "set TMPDIR to a folder of your own"
        raise RunError(f"{folder} is not a folder that only you can enter, so another user may have made it; {hint}")
    return folder


def keep_compiled_code_private() -> None:
    """Let `torch.compile` keep its code in the private folder, if the user has not named another.

    Its own default is a folder in the folder for temporary files whose name another user can guess and make first: the
    code in it would run as this user.

    Raises:
        RunError: see `private_folder`.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        folder = private_folder() / "compiled"
        folder.mkdir(mode=0o700, exist_ok=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def remove_dead_sockets(folder: Path, *, seconds: float = 2.0) -> None:
    """Remove Unix sockets on which nobody listens any more. A process that was killed leaves its socket.

    Args:
        folder: The folder with sockets.
        seconds: Younger sockets stay: the process that made one may not listen yet.
    """
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            facts = path.lstat()
            if stat.S_ISSOCK(facts.st_mode) and time.time() - facts.st_mtime > seconds and not _answers(path):
                path.unlink()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def create_private(path: Path) -> int:
    """Create a file that only this user can read, and return its descriptor, open for writing.

    Args:
        path: The file. It must not exist; a symbolic link counts as existing.

    Raises:
        FileExistsError: it exists.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def write_private(path: Path, text: str) -> None:
    """Write a text to a file that only this user can read, completely or not at all.

    Args:
        path: The file; an existing one is replaced.
        text: The content.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with os.fdopen(create_private(temporary), "w", encoding="utf-8") as stream:
            stream.write(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_private(path: Path) -> str:
    """Return the content of a file that this user wrote.

    Args:
        path: The file.

    Raises:
        RunError: it is a symbolic link, belongs to another user, or others may change it.
        FileNotFoundError: it does not exist.

    Example:
        >>> path = private_folder() / "example"
        >>> write_private(path, "only for me")
        >>> read_private(path)
        'only for me'
        >>> path.unlink()
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(f"{path} cannot be trusted ({error.strerror}); remove it") from error
    with os.fdopen(descriptor, encoding="utf-8") as stream:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
            raise RunError(f"{path} cannot be trusted: it is not a file that you wrote and only you can change")
        return stream.read()


def open_own_part(path: Path) -> IO[bytes]:
    """Open the part of a file that this user is writing, to continue it; it is created if it is missing.

    Its name is known before, so another user of a shared folder could put a link in its place.

    Raises:
        DataError: it is a link, or belongs to another user.
    """
    try:
        stream = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+b")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _foreign_part(path) from None
        raise
    facts = os.fstat(stream.fileno())
    if facts.st_uid != os.getuid() or facts.st_nlink > 1:
        stream.close()
        raise _foreign_part(path)
    return stream


def _foreign_part(path: Path) -> DataError:
    return DataError(f"{path} is a link, or belongs to another user; remove it, and try again")
