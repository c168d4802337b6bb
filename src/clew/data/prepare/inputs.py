"""From what a user names to the files to read, their content hashes, and the split of every event."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clew import storage
from clew.data.prepare.content_keys import key_of
from clew.data.prepare.stage_cache import Cache
from clew.errors import DataError

_READERS = 4
_SETTLED = 2.0
"""Seconds a file must have been left alone before its hash is remembered: a later write could keep size and time."""


@dataclass(frozen=True)
class Source:
    """One input file and the hash of its content."""

    location: str
    bytes: int
    sha256: str
    split: str = ""
    """Where all of its events go, if that was said."""


@dataclass
class Hashes:
    """Content hashes remembered against size, inode and times of change, so that a warm run reads nothing."""

    cache: Cache
    trust: bool = True
    """False re-reads every file."""
    _known: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known = self.cache.note("hashes") or {}

    def of(self, locations: Sequence[str]) -> tuple[int, str]:
        """Bytes and hash of files taken together."""
        stats = [storage.stat(location) for location in locations]
        token = "|".join(f"{stat.size} {stat.token}" for stat in stats)
        name = key_of(list(locations))
        remembered = self._known.get(name)
        size = sum(stat.size for stat in stats)
        if self.trust and remembered and remembered[0] == token:
            return size, remembered[1]
        digest = storage.checksum(locations)
        if all(stat.token and time.time() - stat.modified > _SETTLED for stat in stats):
            self._known[name] = [token, digest]
        else:
            self._known.pop(name, None)
        return size, digest

    def save(self) -> None:
        """Keep what was learned; what others learned meanwhile stays."""
        self.cache.take_note("hashes", {**(self.cache.note("hashes") or {}), **self._known})


def locations(patterns: Sequence[str]) -> list[str]:
    """The files that names, folders, globs and lists (`@files.txt`, a pattern a line) stand for, each once.

    Raises:
        DataError: a pattern matches nothing, or none is given.
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        listed = _listed(Path(pattern[1:])) if pattern.startswith("@") else None
        names = storage.expand(pattern) if listed is None else locations(listed)
        if not names:
            raise DataError(f"no input file matches '{pattern}'")
        for name in names:
            found.setdefault(_same(name), name)
    if not found:
        raise DataError("no input given; name files with --input 'events/*.txt' or prepare.input")
    return list(found.values())


def _listed(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a list of files ({error})") from error
    return [line for line in lines if line and not line.startswith("#")]


@dataclass(frozen=True)
class Beside:
    """Files beside an input that are no inputs themselves: those that count in its hash, and those that do not."""

    companions: Sequence[str] = ()
    ignored: Sequence[str] = ()


def find(
    patterns: Sequence[str] | Mapping[str, Sequence[str]], hashes: Hashes, beside: Callable[[str], Beside]
) -> list[Source]:
    """The files that names, folders and globs (of each split) stand for, in an order that only their content decides.

    Raises:
        DataError: a pattern matches nothing, a file is in two splits, empty, or cannot be read.
    """
    splits = _splits(patterns) if isinstance(patterns, Mapping) else dict.fromkeys(locations(patterns), "")
    together = {name: beside(name) for name in splits}
    others = {other for found in together.values() for other in (*found.companions, *found.ignored)}
    wanted = [(name, found.companions) for name, found in together.items() if name not in others]
    with ThreadPoolExecutor(_READERS) as pool:  # hashing and waiting for a store release Python's lock
        found = pool.map(lambda each: _source(each[0], each[1], hashes), wanted)
        sources = [replace(source, split=splits[source.location]) for source in found]
    hashes.save()
    ordered = sorted(sources, key=lambda source: (source.sha256, source.location))
    for one, other in pairwise(ordered):
        if one.sha256 == other.sha256 and one.split != other.split:
            raise DataError(
                f"{other.location}: in two splits, '{other.split}' and, as its copy {one.location}, '{one.split}'"
            )
    return ordered


def _splits(patterns: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The split of each file."""
    found: dict[str, str] = {}
    seen: dict[str, str] = {}
    for split, each in patterns.items():
        for name in locations(each):
            if seen.setdefault(_same(name), split) != split:
                raise DataError(f"{name}: in two splits, '{seen[_same(name)]}' and '{split}'")
            found[name] = split
    return found


def split_of(source: Source, first: int, count: int, split: Mapping[str, float], seed: int) -> NDArray[np.int64]:
    """The split, by its place in `split`, of events first .. first + count of a file."""
    start = hashlib.sha256(f"{source.sha256} {seed}".encode()).digest()[:8]
    return _place(np.arange(first, first + count, dtype=np.uint64) + np.frombuffer(start, dtype=np.uint64), split)


def split_of_keys(keys: NDArray[np.int64], split: Mapping[str, float], seed: int) -> NDArray[np.int64]:
    """The split of events by the value of a key: equal keys stay together, in every file."""
    start = hashlib.sha256(f"key {seed}".encode()).digest()[:8]
    return _place(keys.astype(np.uint64) + np.frombuffer(start, dtype=np.uint64), split)


def split_of_files(
    sources: Sequence[Source], events: Sequence[int], split: Mapping[str, float], seed: int
) -> list[int]:
    """One split for each file, such that the shares of events come out as near as whole files allow."""
    order = sorted(
        range(len(sources)), key=lambda i: hashlib.sha256(f"{sources[i].sha256} {seed}".encode()).hexdigest()
    )
    places, total, filled = [0] * len(sources), max(sum(events), 1), 0
    bounds = np.cumsum(list(split.values()))
    for index in order:
        middle = (filled + events[index] / 2) / total
        places[index] = min(int(np.searchsorted(bounds, middle, side="right")), len(bounds) - 1)
        filled += events[index]
    return places


def _same(location: str) -> str:
    """What two names of one local file have in common."""
    return location if storage.is_url(location) else os.path.realpath(location)


def _source(location: str, companions: Sequence[str], hashes: Hashes) -> Source:
    if storage.stat(location).size == 0:
        raise DataError(f"{location}: the file is empty")
    size, digest = hashes.of([location, *companions])
    inside = storage.split_inside(location)[1]
    return Source(location, size, key_of([digest, inside]) if inside else digest)


def _place(state: NDArray[np.uint64], split: Mapping[str, float]) -> NDArray[np.int64]:
    bounds = np.cumsum(list(split.values()))
    return np.minimum(np.searchsorted(bounds, _mix(state), side="right"), len(bounds) - 1).astype(np.int64)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Splitmix64's finaliser: neighbouring integers to independent uniform numbers in [0, 1)."""
    with np.errstate(over="ignore"):
        state = state * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) / float(1 << 53)
