"""Access to files on the local disk, S3, XRootD, Rucio, or any URL that fsspec supports.

No other package opens inputs or talks to a store. `copy` copies files and folders between any two locations; the other
functions read. Inputs from S3, XRootD and Rucio are read from copies on this machine (`clew.storage.input_cache`).

Reading order: `locations` (what a location string means), `store` (the contract of a store and the table of stores),
one module per store, `transfer` (parallel, checked, resumable copies), `input_cache`, `models` (stored models).
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
from clew.storage.fsspec_store import change_token, check_no_reference
from clew.storage.input_cache import InputCache, report_transfers
from clew.storage.locations import (
    absolute_location,
    absolute_locations,
    base_name,
    check_scheme,
    is_url,
    join,
    local_path,
    mask_secrets,
    parent_location,
    scheme,
    split_inside,
)
from clew.storage.store_errors import ChecksumMismatchError, StoreUnavailableError, one_line_errors
from clew.storage.transfer import copy
from clew.storage.transfer_state import ProgressCallback, TransferProgress, cache_folder

__all__ = [
    "ChecksumMismatchError",
    "InputCache",
    "ProgressCallback",
    "Stat",
    "StoreUnavailableError",
    "TransferProgress",
    "absolute_location",
    "absolute_locations",
    "base_name",
    "cache_folder",
    "check_scheme",
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
"""Stores whose files are read from a local copy. Hashing reads the whole file anyway."""
_held: dict[Path, ExitStack] = {}
"""Cached folders that this process uses until it ends."""


@dataclass(frozen=True)
class Stat:
    """Size and change token of a file. Rewriting the file changes the token."""

    size: int
    token: str
    modified: float
    """Modification time in seconds since 1970; 0 if the store does not report it."""


def expand(pattern: str) -> list[str]:
    """The files that a name, a folder or a glob matches, sorted by name, without hidden files.

    Args:
        pattern: The name of a file; a folder (all files directly in it); a Rucio dataset (all its files); or a glob. A
            file with exactly this name wins over the glob. A tree name after `.root:` is appended to every match.

    Returns:
        The locations; an empty list if nothing matches.

    Raises:
        ConfigError: The scheme of the pattern is unknown.
        DataError: The store does not answer.
    """
    file, inside = split_inside(check_scheme(pattern))
    names = _expand_url(file) if is_url(file) else _expand_local(file)
    return [f"{name}:{inside}" if inside else name for name in sorted(names)]


@contextmanager
def open_binary(location: str) -> Iterator[BinaryIO]:
    """Open a file for reading (with seek).

    Raises:
        DataError: The file cannot be opened.
    """
    file, _ = split_inside(location)
    with ExitStack() as stack:
        with one_line_errors(file):
            copy_path = stack.enter_context(_inputs().local_copy(file)) if scheme(file) in _COPIED else None
            if copy_path is None and is_url(file):
                check_no_reference(_direct(file))
                stream = stack.enter_context(_fsspec().open(_direct(file), "rb"))
            else:
                stream = stack.enter_context((copy_path or local_path(file)).open("rb"))
        yield stream


def stat(location: str) -> Stat:
    """Size and change token of a file. The content is not read.

    Raises:
        DataError: The file does not exist.
    """
    file, _ = split_inside(location)
    with one_line_errors(file):
        if scheme(file) == "rucio":
            stored = stores.find_store(file).files(file).get("")
            if stored is None:
                raise FileNotFoundError(file)
            return Stat(stored.size, stored.token, 0.0)
        if is_url(file):
            system, path = _system(file)
            info = system.info(path)
            return Stat(int(info["size"]), change_token(info), 0.0)
        status = local_path(file).stat()
        return Stat(status.st_size, f"{status.st_dev}-{status.st_ino}-{status.st_mtime_ns}", status.st_mtime)


def checksum(locations: Sequence[str]) -> str:
    """SHA-256 (hexadecimal) of the concatenated content of files.

    Raises:
        DataError: A file cannot be read.
    """
    digest, stored_digest = hashlib.sha256(), ""
    for location in locations:
        with open_binary(location) as stream, one_line_errors(split_inside(location)[0]):
            if len(locations) == 1 and scheme(location) in _COPIED:
                stored_digest = _inputs().sha256(split_inside(location)[0])
            while not stored_digest and (block := stream.read(_BLOCK)):
                digest.update(block)
    return stored_digest or digest.hexdigest()


def read(location: str, inner: str = "") -> bytes:
    """Read a small file directly from its store.

    Args:
        location: A file, or a folder if `inner` is set.
        inner: Path of the file below the folder.

    Raises:
        DataError: The file does not exist or cannot be read.
    """
    with one_line_errors(location):
        store = stores.find_store(location)
        stored = store.files(location).get(inner)
        if stored is None:
            raise FileNotFoundError(location)
        return store.read(stored, 0, stored.size)


def folder(location: str) -> Path:
    """A local folder with the files at a location. A fetched copy is not removed while this process runs.

    Raises:
        DataError: The files cannot be fetched or do not fit into the cache.
    """
    if not is_url(location):
        return local_path(location)
    with ExitStack() as stack:
        path = stack.enter_context(_inputs().local_copy(location))
        if path is not None and path not in _held:
            _held[path] = stack.pop_all()
    if path is None:
        hint = "raise the limit (`clew cache limit`), or fetch it with `clew data get`"
        raise DataError(f"{mask_secrets(location)}: does not fit into the cache of inputs; {hint}")
    return path


def _expand_local(pattern: str) -> list[str]:
    path = local_path(pattern)
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        return [str(inner) for inner in path.iterdir() if inner.is_file() and inner.name[0] != "."]
    names = glob.glob(str(path), recursive=True)  # noqa: PTH207 - takes absolute patterns, Path.glob does not
    return [name for name in names if Path(name).is_file()]


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
    """`pattern` with `path` replaced by `name`. Chained URLs (`zip://*.txt::...`) keep their other parts."""
    before, match, after = pattern.rstrip("/").rpartition(path)
    return f"{before}{name}{after}" if match else str(system.unstrip_protocol(name))


def _direct(location: str) -> str:
    """The location from which to read a file that cannot be cached."""
    if scheme(location) != "rucio":
        return location
    return next(iter(stores.find_store(location).files(location)[""].replicas), location)


def _system(location: str) -> tuple[Any, str]:
    from clew.storage.fsspec_store import FsspecStore

    store = stores.find_store(location)
    assert isinstance(store, FsspecStore), "only called for stores of fsspec"
    return store.open(location)


def _inputs() -> InputCache:
    return _of(cache_folder())


@functools.cache
def _of(folder: Path) -> InputCache:
    return InputCache(folder)


def _fsspec() -> Any:
    import fsspec

    return fsspec
