"""Errors of a disk in words: full, read-only, over quota. Python, HDF5 and safetensors report them differently."""

from __future__ import annotations

import atexit
import errno
import os
import re
import sys
from pathlib import Path
from typing import Any

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file would be larger than allowed (ulimit -f)",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "no permission to write there; choose another folder",
}
_NUMBER = re.compile(r"(?:errno = |os error |\[Errno )(\d+)")
_TORCH = "inline_container.cc"
"""torch replaces the error of the system by one of its file format."""
_FILE = re.compile(r"filename = '([^']+)'")
_TEMPORARY = (re.compile(r"^\.(.+)\.\d+-[0-9a-f]+\.tmp$"), re.compile(r"^\.(.+)-[^-]+\.partial$"))


def disk_reason(error: BaseException) -> str:
    """Return what is wrong with the disk and what to do, or '' if the error has another cause.

    Args:
        error: An OSError, or an error of a library whose text contains the number of the system's error.

    Example:
        >>> disk_reason(OSError(28, "No space left on device"))
        'the disk is full; free some space'
    """
    number = getattr(error, "errno", None)
    match = _NUMBER.search(str(error))
    if number not in _REASONS and match:
        number = int(match[1])
    if _TORCH in str(error):
        return "torch could not write all of it; the disk may be full"
    return _REASONS.get(number or 0, "")


def disk_error_text(error: BaseException, path: Path | None = None) -> str:
    """Return the file and what is wrong with its disk, or '' if the error has another cause.

    Args:
        error: The error.
        path: The file. By default the one that the error names; temporary names are replaced by the final ones.
    """
    reason = disk_reason(error)
    match = _FILE.search(str(error))
    name = getattr(error, "filename", None) or (match[1] if match else "")
    if not reason:
        return ""
    place = path or (final_path(Path(str(name))) if name else None)
    return reason if place is None else f"{place}: cannot be written: {reason}"


def final_path(path: Path) -> Path:
    """Return a path with the final names of temporary files and folders.

    Example:
        >>> final_path(Path("/data/.set-ab12.partial/.val-00000.h5.77-0123456789abcdef.tmp")).as_posix()
        '/data/set/val-00000.h5'
    """
    return Path(*(_final_name(part) for part in path.parts))


def _final_name(name: str) -> str:
    return next((match[1] for pattern in _TEMPORARY if (match := pattern.match(name))), name)


def exit_safely(error: BaseException, code: int) -> None:
    """Let this process exit with a code although HDF5 could not write a file: at exit it tries again, and crashes."""
    causes = [error, error.__cause__]
    if any(cause is not None and "errno = " in str(cause) and disk_reason(cause) for cause in causes):
        atexit.register(os._exit, code)


def quiet_disk_errors() -> None:
    """Do not print errors of a disk that HDF5 reports again when it closes a file that could not be written."""
    before, before_unraisable = sys.excepthook, sys.unraisablehook
    if getattr(before, "quiet", False):
        return

    def show(kind: Any, error: BaseException, trace: Any) -> None:
        if not disk_reason(error):
            before(kind, error, trace)

    def show_unraisable(unraisable: Any) -> None:
        if unraisable.exc_value is None or not disk_reason(unraisable.exc_value):
            before_unraisable(unraisable)

    show.quiet = True  # type: ignore[attr-defined]
    sys.excepthook, sys.unraisablehook = show, show_unraisable
