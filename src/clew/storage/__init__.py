"""Where raw data lies: a local path, or any URL that fsspec knows. Nothing else in clew opens inputs."""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from clew.errors import DataError

_BLOCK = 1 << 22
_INSIDE = re.compile(r"^(?P<file>.*\.root):(?P<inside>[^/\\][^\\]*)$", re.IGNORECASE)
_CHANGING = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")
"""What stores say of a file that a rewrite changes, the surest first."""


@dataclass(frozen=True)
class Stat:
    """What tells that a file may have changed: its size, and a token that a rewrite changes."""

    size: int
    token: str
    modified: float
    """Seconds since 1970; 0 where the store does not say."""


def is_url(location: str) -> bool:
    """Whether a location names a store (`s3://...`) and not a local file."""
    return "://" in location


def split_inside(location: str) -> tuple[str, str]:
    """`file.root:tree` as (file, tree); anything else as (location, '')."""
    match = _INSIDE.match(location)
    return (match["file"], match["inside"]) if match else (location, "")


def expand(pattern: str) -> list[str]:
    """The files that a name, a folder or a glob stands for, by name; hidden ones are left out.

    A file of that very name comes before what it would match as a glob; a folder stands for the files right in it.
    A part behind `.root:` (a tree's name) is given to every file found. Nothing found is an empty list.

    Raises:
        DataError: a store cannot be asked.
    """
    file, inside = split_inside(pattern)
    found = _expand_url(file) if is_url(file) else _expand_local(file)
    return [f"{name}:{inside}" if inside else name for name in sorted(found)]


def local(location: str) -> Path:
    """The path of a local file, `~` and the part behind `.root:` dealt with."""
    return Path(split_inside(location)[0]).expanduser()


@contextmanager
def open_binary(location: str) -> Iterator[BinaryIO]:
    """A file open for reading, with seek.

    Raises:
        DataError: it cannot be opened.
    """
    file, _ = split_inside(location)
    with ExitStack() as stack:
        with _told(file):
            opening = _fsspec().open(file, "rb") if is_url(file) else local(file).open("rb")
            stream = stack.enter_context(opening)
        yield stream


def stat(location: str) -> Stat:
    """Size and change token, without reading content.

    Raises:
        DataError: it is not there.
    """
    file, _ = split_inside(location)
    with _told(file):
        if is_url(file):
            system, path = _fsspec().core.url_to_fs(file)
            info = system.info(path)
            token = next((str(info[key]) for key in _CHANGING if info.get(key)), "")
            return Stat(int(info["size"]), token, 0.0)
        seen = local(file).stat()
        return Stat(seen.st_size, f"{seen.st_dev}-{seen.st_ino}-{seen.st_mtime_ns}", seen.st_mtime)


def checksum(locations: Sequence[str]) -> str:
    """Hex SHA-256 of the content of files, one after the other.

    Raises:
        DataError: one of them cannot be read.
    """
    digest = hashlib.sha256()
    for location in locations:
        with open_binary(location) as stream, _told(split_inside(location)[0]):
            while block := stream.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def _expand_local(pattern: str) -> list[str]:
    path = local(pattern)
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        return [str(inner) for inner in path.iterdir() if inner.is_file() and inner.name[0] != "."]
    found = glob.glob(str(path), recursive=True)  # noqa: PTH207 - takes absolute patterns, Path.glob does not
    return [name for name in found if Path(name).is_file()]


def _expand_url(pattern: str) -> list[str]:
    with _told(pattern):
        system, path = _fsspec().core.url_to_fs(pattern)
        if system.isfile(path):  # first: for a web server a file is a folder too
            return [pattern]
        if any(sign in path for sign in "*?["):
            entries = list(system.glob(path, detail=True).values())
        else:
            entries = system.ls(path, detail=True) if system.isdir(path) else []
        names = [str(entry["name"]) for entry in entries if entry["type"] == "file"]
        return [_url(name, pattern, path, system) for name in names if name.rpartition("/")[2][:1] != "."]


def _url(name: str, pattern: str, path: str, system: Any) -> str:
    """What `pattern` would be with `name` in the place of `path`; chains (`zip://*.txt::...`) stay whole."""
    before, found, after = pattern.rstrip("/").rpartition(path)
    return f"{before}{name}{after}" if found else str(system.unstrip_protocol(name))


@contextmanager
def _told(file: str) -> Iterator[None]:
    """Whatever goes wrong inside as one line; what a store's client raises is its own affair, so all of it counts."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if not is_url(file) and not isinstance(error, (OSError, ValueError)):
            raise
        reason = "no such file" if isinstance(error, FileNotFoundError) else getattr(error, "strerror", None) or error
        raise DataError(f"{file}: cannot be read ({reason})") from error


def _fsspec() -> Any:
    import fsspec

    return fsspec
