"""From what a user names to the files to read, and from an event to its split."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clew.errors import DataError
from clew.files import sha256


@dataclass(frozen=True)
class Source:
    """One input file and the hash of its content."""

    path: Path
    bytes: int
    sha256: str


def find(patterns: Sequence[str]) -> list[Source]:
    """The files that names, folders and globs stand for, in an order that only their content decides.

    Raises:
        DataError: a pattern matches nothing, or a file is empty or cannot be read.
    """
    paths: dict[Path, None] = {}
    for pattern in patterns:
        found = [path for path in map(Path, _expand(pattern)) if path.is_file()]
        if not found:
            raise DataError(f"no input file matches '{pattern}'")
        paths.update(dict.fromkeys(path.resolve() for path in found))
    if not paths:
        raise DataError("no input given; name files with --input 'events/*.txt' or prepare.input")
    return sorted((_source(path) for path in paths), key=lambda source: (source.sha256, str(source.path)))


def split_of(source: Source, first: int, count: int, split: Mapping[str, float], seed: int) -> NDArray[np.int64]:
    """The split, by its place in `split`, of events first .. first + count of a file."""
    start = hashlib.sha256(f"{source.sha256} {seed}".encode()).digest()[:8]
    uniform = _mix(np.arange(first, first + count, dtype=np.uint64) + np.frombuffer(start, dtype=np.uint64))
    bounds = np.cumsum(list(split.values()))
    return np.minimum(np.searchsorted(bounds, uniform, side="right"), len(bounds) - 1)


def _expand(pattern: str) -> list[str]:
    path = Path(pattern).expanduser()
    if path.is_dir():
        return [str(inner) for inner in path.iterdir() if not inner.name.startswith(".")]
    return sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - takes absolute patterns, Path.glob does not


def _source(path: Path) -> Source:
    try:
        size = path.stat().st_size
        if size == 0:
            raise DataError(f"{path}: the file is empty")
        return Source(path, size, sha256(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _mix(state: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Splitmix64's finaliser: neighbouring integers to independent uniform numbers in [0, 1)."""
    with np.errstate(over="ignore"):
        state = state * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) / float(1 << 53)
