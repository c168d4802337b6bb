"""Which files that contain code are the user's own, and which came from elsewhere and are not executed unasked.

A recipe is code, and so are the source files of a run and a program of `torch.export`. Those that this user made are
executed. Those that clew brought from elsewhere carry a mark (`.clew-origin`), and those of another user have another
owner: they are executed only after the user said so (`--trust`). The decision is remembered by content, so the same
code is never asked about twice, and changed code is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from clew.core.files import sha256, write_text
from clew.errors import RunError

ORIGIN = ".clew-origin"
"""The file in a folder that says where clew brought the folder from."""
_DOWNLOAD = "user.xdg.origin.url"
"""The attribute with which browsers mark a file that they downloaded."""
_NAMED = 3
"""A message names at most so many files."""


def config_folder() -> Path:
    """Return the user's folder of settings: $CLEW_CONFIG, or `clew` in the folder that the system has for them."""
    folder = os.environ.get("CLEW_CONFIG")
    default = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "clew"
    return Path(folder) if folder else default


def mark_origin(folder: Path, origin: str) -> None:
    """Mark a folder as brought from elsewhere. Call it before the first file arrives.

    Args:
        folder: The folder; it is created if it is missing.
        origin: Where it comes from, without secrets.
    """
    write_text(folder / ORIGIN, json.dumps({"from": origin}) + "\n")


def foreign_origin(path: Path, files: Iterable[Path] = ()) -> str | None:
    """Return where a file or folder came from, or None if it is the user's own.

    Args:
        path: The file or folder. A mark on a folder counts for everything in it.
        files: Files of the folder whose owner matters too.

    Returns:
        The origin, `user NAME` for what belongs to another user, or None.
    """
    place = path.resolve()
    for folder in (place, *place.parents):
        if (folder / ORIGIN).is_file():
            return _origin(folder / ORIGIN)
    for file in (path, *files):
        owner = file.stat().st_uid
        if owner not in (os.getuid(), 0):  # the administrator can replace clew itself
            return f"user {owner}"
    if path.is_file():
        with contextlib.suppress(OSError):  # not marked, or a file system without attributes
            return os.getxattr(path, _DOWNLOAD).decode(errors="replace")
    return None


def content_digest(files: Iterable[tuple[str, Path]], more: str = "") -> str:
    """Return a hash of the names and the content of files.

    Args:
        files: Names and files.
        more: A text that counts too.
    """
    lines = [f"{name} {sha256(path)}" for name, path in files]
    return hashlib.sha256("\n".join([more, *sorted(lines)]).encode()).hexdigest()


def remember(digest: str, what: str) -> None:
    """Trust a content from now on, on every machine that shares the user's folder of settings.

    Args:
        digest: The hash of the content.
        what: What it is, for people who read the file.

    Raises:
        RunError: The user's folder of settings cannot be written.
    """
    folder = config_folder() / "trusted"
    try:
        write_text(folder / digest, what + "\n")
    except OSError as error:
        advice = "set CLEW_CONFIG to a folder that you can write to"
        raise RunError(f"{folder}: trust cannot be remembered ({error.strerror}); {advice}") from error


def is_trusted(digest: str) -> bool:
    """Whether a content was made or trusted by this user."""
    return (config_folder() / "trusted" / digest).is_file()


def trust_file(path: Path) -> None:
    """Trust a file, or a folder that is one model, from now on: this user made it, or says so.

    Args:
        path: The file or folder.
    """
    remember(_file_digest(path), str(path.absolute()))


def is_file_trusted(path: Path) -> bool:
    """Whether a file, or a folder that is one model, was made or trusted by this user."""
    return is_trusted(_file_digest(path))


def refusal(path: Path, origin: str, names: Sequence[str]) -> RunError:
    """Return the error for code from elsewhere that nobody trusted.

    Args:
        path: The file or folder.
        origin: Where it came from.
        names: What would be executed.
    """
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    what = ", ".join(names[:_NAMED]) + more
    advice = f"read it, then use --trust once (trust=True in Python), or `clew model trust {path}`"
    return RunError(f"{path} came from {origin} and would run code as you: {what}; {advice}")


def _file_digest(path: Path) -> str:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return content_digest((each.relative_to(path).as_posix(), each) for each in files)


def _origin(mark: Path) -> str:
    try:
        return str(json.loads(mark.read_text())["from"])
    except (OSError, ValueError, KeyError, TypeError):
        return "elsewhere"
