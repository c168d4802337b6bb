"""Where data, models and reports lie: a local path, S3, XRootD, Rucio, or any URL that fsspec knows.

Nothing else in clew opens inputs or talks to a store. `copy` moves files and folders between any two places; the others
read. Inputs from S3, XRootD and Rucio are read from copies on this machine (`clew.storage.input_cache`).
"""

from __future__ import annotations

import functools
import glob
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from clew.errors import DataError
from clew.storage import store as stores
from clew.storage.fsspec_store import change_token
from clew.storage.input_cache import InputCache, report_transfers
from clew.storage.locations import (
    base_name,
    is_url,
    join,
    local_path,
    mask_secrets,
    parent_location,
    scheme,
    split_inside,
)
from clew.storage.store_errors import ChecksumMismatchError, StoreUnavailableError, one_line_errors
from clew.storage.transfer import ProgressCallback, TransferProgress, copy
from clew.storage.transfer_state import cache_folder

__all__ = [
    "ChecksumMismatchError",
    "InputCache",
    "ProgressCallback",
    "Stat",
    "StoreUnavailableError",
    "TransferProgress",
    "base_name",
    "cache_folder",
    "checksum",
    "copy",
    "expand",
    "folder",
    "is_url",
    "join",
    "local_path",
    "mask_secrets",
    "one_line_errors",
    "open_binary",
    "parent_location",
    "read",
    "report_transfers",
    "scheme",
    "split_inside",
    "stat",
]

_BLOCK = 1 << 22
_COPIED = ("s3", "root", "rucio")
"""Stores whose files are read from a local copy: hashing reads all of a file anyway."""
_held: dict[Path, ExitStack] = {}
"""Folders in use until this process ends."""


@dataclass(frozen=True)
class Stat:
    """What tells that a file may have changed: its size, and a token that a rewrite changes."""

    size: int
    token: str
    modified: float
    """Seconds since 1970; 0 where the store does not say."""


def expand(pattern: str) -> list[str]:
    """The files that a name, a folder or a glob stands for, by name; hidden ones are left out.

    A file of that very name comes before what it would match as a glob; a folder stands for the files right in it, and
    a Rucio dataset for its files. A part behind `.root:` (a tree's name) is given to every file found. Nothing found is
    an empty list.

    Raises:
        DataError: a store cannot be asked.
    """
    file, inside = split_inside(pattern)
    found = _expand_url(file) if is_url(file) else _expand_local(file)
    return [f"{name}:{inside}" if inside else name for name in sorted(found)]


@contextmanager
def open_binary(location: str) -> Iterator[BinaryIO]:
    """A file open for reading, with seek.

    Raises:
        DataError: it cannot be opened.
    """
    file, _ = split_inside(location)
    with ExitStack() as stack:
        with one_line_errors(file):
            here = stack.enter_context(_inputs().held(file)) if scheme(file) in _COPIED else None
            opening = here.open("rb") if here else _fsspec().open(_direct(file), "rb") if is_url(file) else None
            stream = stack.enter_context(opening or local_path(file).open("rb"))
        yield stream


def stat(location: str) -> Stat:
    """Size and change token, without reading content.

    Raises:
        DataError: it is not there.
    """
    file, _ = split_inside(location)
    with one_line_errors(file):
        if scheme(file) == "rucio":
            held = stores.find_store(file).files(file).get("")
            if held is None:
                raise FileNotFoundError(file)
            return Stat(held.size, held.token, 0.0)
        if is_url(file):
            system, path = _system(file)
            info = system.info(path)
            return Stat(int(info["size"]), change_token(info), 0.0)
        seen = local_path(file).stat()
        return Stat(seen.st_size, f"{seen.st_dev}-{seen.st_ino}-{seen.st_mtime_ns}", seen.st_mtime)


def checksum(locations: Sequence[str]) -> str:
    """Hex SHA-256 of the content of files, one after the other.

    Raises:
        DataError: one of them cannot be read.
    """
    digest, known = hashlib.sha256(), ""
    for location in locations:
        with open_binary(location) as stream, one_line_errors(split_inside(location)[0]):
            if len(locations) == 1 and scheme(location) in _COPIED:
                known = _inputs().sha256(split_inside(location)[0])
            while not known and (block := stream.read(_BLOCK)):
                digest.update(block)
    return known or digest.hexdigest()


def read(location: str, inner: str = "") -> bytes:
    """All of a small file, or of one in a folder, straight from where it lies.

    Raises:
        DataError: it is not there, or cannot be read.
    """
    with one_line_errors(location):
        store = stores.find_store(location)
        held = store.files(location).get(inner)
        if held is None:
            raise FileNotFoundError(location)
        return store.read(held, 0, held.size)


def folder(location: str) -> Path:
    """A folder on this machine with what lies at a location; a copy of it stays while this process lives.

    Raises:
        DataError: it cannot be fetched, or kept.
    """
    if not is_url(location):
        return local_path(location)
    with ExitStack() as stack:
        path = stack.enter_context(_inputs().held(location))
        if path is not None and path not in _held:
            _held[path] = stack.pop_all()
    if path is None:
        hint = "raise the limit (`clew cache limit`), or bring it with `clew data get`"
        raise DataError(f"{mask_secrets(location)}: there is no room for it among the copies of inputs; {hint}")
    return path


def _expand_local(pattern: str) -> list[str]:
    path = local_path(pattern)
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        return [str(inner) for inner in path.iterdir() if inner.is_file() and inner.name[0] != "."]
    found = glob.glob(str(path), recursive=True)  # noqa: PTH207 - takes absolute patterns, Path.glob does not
    return [name for name in found if Path(name).is_file()]


def _expand_url(pattern: str) -> list[str]:
    with one_line_errors(pattern):
        if scheme(pattern) == "rucio":
            return [held.location for held in stores.find_store(pattern).files(pattern).values()]
        system, path = _system(pattern)
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


def _direct(location: str) -> str:
    """Where to read a file that cannot be copied here."""
    if scheme(location) != "rucio":
        return location
    return next(iter(stores.find_store(location).files(location)[""].replicas), location)


def _system(location: str) -> tuple[Any, str]:
    from clew.storage.fsspec_store import FsspecStore

    store = stores.find_store(location)
    assert isinstance(store, FsspecStore), "asked for what fsspec knows"
    return store.open(location)


def _inputs() -> InputCache:
    return _of(cache_folder())


@functools.cache
def _of(folder: Path) -> InputCache:
    return InputCache(folder)


def _fsspec() -> Any:
    import fsspec

    return fsspec
