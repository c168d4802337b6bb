"""Versions of the file formats: a file that only a newer clew can read is refused in one line."""

from __future__ import annotations

from pathlib import Path

from clew.errors import UserError


def check_format_version(
    path: Path | str, version: object, newest: int, error: type[UserError], what: str = "format"
) -> None:
    """Refuse a file of a newer format than this clew can read.

    Args:
        path: The file or folder, for the message.
        version: The version that the file names. None, from before the format had a version, counts as the first.
        newest: The newest version that this clew reads.
        error: The class of the error to raise.
        what: The word for the version in the message.

    Raises:
        UserError: The version is newer. The error is of the class `error`.

    Example:
        >>> check_format_version("data/manifest.json", 1, newest=1, error=UserError)
        >>> check_format_version("data/manifest.json", 2, newest=1, error=UserError)
        Traceback (most recent call last):
        ...
        clew.errors.UserError: data/manifest.json: written by a newer clew (format 2, this clew reads 1); update clew
    """
    if isinstance(version, int) and version > newest:
        raise newer_format(path, version, newest, error, what)


def newer_format(path: Path | str, version: object, newest: object, error: type[UserError], what: str) -> UserError:
    """Return the error for a file that a newer clew wrote. The arguments are those of `check_format_version`."""
    return error(f"{path}: written by a newer clew ({what} {version}, this clew reads {newest}); update clew")
