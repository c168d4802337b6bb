"""From patterns to the files to read, the hashes of their content, and the split of every event."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clew import readers, storage
from clew.data.prepare.content_keys import key_of
from clew.data.prepare.stage_cache import StageCache
from clew.data.readers import DataWarning, FilePieces
from clew.errors import ConfigError, DataError
from clew.recipe import Recipe

_READERS = 16
"""Files that are hashed at the same time."""
_SETTLED = 2.0
"""Seconds for which a file must be unchanged before its hash is remembered: a later write could keep size and time."""


@dataclass(frozen=True)
class InputSource:
    """One input file and the hash of its content."""

    location: str
    bytes: int
    sha256: str
    split: str = ""
    """The split of all of its events, if the settings name one."""


@dataclass
class FileHashes:
    """Hashes of the content of files, remembered with size, inode and times of change, so that a repeated run reads no
    data."""

    cache: StageCache
    trust: bool = True
    """False reads every file again."""
    _remembered: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._remembered = self.cache.note("hashes") or {}

    def of(self, locations: Sequence[str]) -> tuple[int, str]:
        """Return the total size, in bytes, and the hash of some files."""
        stats = [storage.stat(location) for location in locations]
        token = "|".join(f"{stat.size} {stat.token}" for stat in stats)
        name = key_of(list(locations))
        remembered = self._remembered.get(name)
        size = sum(stat.size for stat in stats)
        if self.trust and remembered and remembered[0] == token:
            return size, remembered[1]
        digest = storage.checksum(locations)
        if all(stat.token and time.time() - stat.modified > _SETTLED for stat in stats):
            self._remembered[name] = [token, digest]
        else:
            self._remembered.pop(name, None)
        return size, digest

    def save(self) -> None:
        """Store the hashes in the cache. Hashes that other processes have stored meanwhile are kept."""
        self.cache.take_note("hashes", {**(self.cache.note("hashes") or {}), **self._remembered})


def warn_about_input(recipe: Recipe, location: str) -> None:
    """Warn about what an input lacks, and what is used instead, as its reader reports it.

    The first input of a recipe is enough: the files of one production lack the same things.

    Raises:
        DataError: the file cannot be read.
    """
    pieces = recipe.read(location)
    for note in pieces.reader.file_notes(location) if isinstance(pieces, FilePieces) else ():
        warnings.warn(f"{location}: {note}", DataWarning, stacklevel=2)


def expand_patterns(patterns: Sequence[str]) -> list[str]:
    """Return the files of paths, folders, patterns and lists (`@files.txt`, one pattern per line), each file once.

    Raises:
        DataError: a pattern matches no file, or there is no pattern.
    """
    files: dict[str, str] = {}
    for pattern in patterns:
        listed_patterns = _listed(Path(pattern[1:])) if pattern.startswith("@") else None
        names = storage.expand(pattern) if listed_patterns is None else expand_patterns(listed_patterns)
        if not names:
            raise DataError(f"no input file matches '{pattern}'")
        for name in names:
            files.setdefault(_same(name), name)
    if not files:
        raise DataError("no input given; name files with --input 'events/*.txt' or prepare.input")
    return list(files.values())


def _listed(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a list of files ({error})") from error
    return [line for line in lines if line and not line.startswith("#")]


@dataclass(frozen=True)
class RelatedFiles:
    """Files that belong to an input and are no inputs themselves: those that count in its hash, and those that do
    not."""

    companions: Sequence[str] = ()
    ignored: Sequence[str] = ()

    @property
    def all(self) -> set[str]:
        """The files of both kinds."""
        return {*self.companions, *self.ignored}


def related_files(recipe: Recipe, location: str) -> RelatedFiles:
    """Return the files that belong to an input of a recipe.

    The reader that the recipe uses decides. A recipe whose `read` is a generator hides its reader. Then the reader
    that accepts the name of the file decides.
    """
    try:
        pieces = recipe.read(location)
        pieces = pieces if isinstance(pieces, FilePieces) else readers.read(location)
    except (ConfigError, DataError):  # a file that belongs to another one, or that only the recipe can read
        return RelatedFiles()
    return RelatedFiles(pieces.reader.companion_files(location), pieces.reader.ignored_files(location))


def input_files(recipe: Recipe, patterns: Sequence[str]) -> list[str]:
    """Return the files of paths, folders, patterns and lists, without the files that only belong to others.

    Raises:
        DataError: a pattern matches no file, or there is no pattern.
    """
    files = expand_patterns(patterns)
    related = {other for file in files for other in related_files(recipe, file).all}
    return [file for file in files if file not in related]


def find_sources(
    patterns: Sequence[str] | Mapping[str, Sequence[str]],
    hashes: FileHashes,
    related_to: Callable[[str], RelatedFiles],
) -> list[InputSource]:
    """Return the input files, in an order that depends on their content only.

    Args:
        patterns: Patterns of files, or patterns by split.
        hashes: The known hashes.
        related_to: Returns the files that belong to an input.

    Raises:
        DataError: a pattern matches no file, or a file is in two splits, is empty, or cannot be read.
    """
    splits = _splits(patterns) if isinstance(patterns, Mapping) else dict.fromkeys(expand_patterns(patterns), "")
    related = {name: related_to(name) for name in splits}
    others = {other for files in related.values() for other in files.all}
    inputs = [(name, files.companions) for name, files in related.items() if name not in others]
    with ThreadPoolExecutor(_READERS) as pool:  # hashing and waiting for a store release Python's lock
        hashed = pool.map(lambda entry: _source(entry[0], entry[1], hashes), inputs)
        sources = [replace(source, split=splits[source.location]) for source in hashed]
    hashes.save()
    ordered = sorted(sources, key=lambda source: (source.sha256, source.location))
    for one, other in pairwise(ordered):
        if one.sha256 == other.sha256 and one.split != other.split:
            raise DataError(
                f"{other.location}: in two splits, '{other.split}' and, as its copy {one.location}, '{one.split}'"
            )
    return ordered


def _splits(patterns: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the split of each file."""
    split_of_file: dict[str, str] = {}
    split_of_path: dict[str, str] = {}
    for split, split_patterns in patterns.items():
        for name in expand_patterns(split_patterns):
            if split_of_path.setdefault(_same(name), split) != split:
                raise DataError(f"{name}: in two splits, '{split_of_path[_same(name)]}' and '{split}'")
            split_of_file[name] = split
    return split_of_file


def split_of(source: InputSource, first: int, count: int, split: Mapping[str, float], seed: int) -> NDArray[np.int64]:
    """Return the split of the events `first` to `first + count` of a file, as its position in `split`."""
    start = hashlib.sha256(f"{source.sha256} {seed}".encode()).digest()[:8]
    return _place(np.arange(first, first + count, dtype=np.uint64) + np.frombuffer(start, dtype=np.uint64), split)


def split_of_keys(keys: NDArray[np.int64], split: Mapping[str, float], seed: int) -> NDArray[np.int64]:
    """Return the split of events by the value of a key. Equal keys are in the same split, in every file."""
    start = hashlib.sha256(f"key {seed}".encode()).digest()[:8]
    return _place(keys.astype(np.uint64) + np.frombuffer(start, dtype=np.uint64), split)


def split_of_files(
    sources: Sequence[InputSource], events: Sequence[int], split: Mapping[str, float], seed: int
) -> list[int]:
    """Return one split per file, such that the shares of events are as close as whole files allow."""
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
    """Return a text that is the same for two names of one local file."""
    return location if storage.is_url(location) else os.path.realpath(location)


def _source(location: str, companions: Sequence[str], hashes: FileHashes) -> InputSource:
    if storage.stat(location).size == 0:
        raise DataError(f"{location}: the file is empty")
    size, digest = hashes.of([location, *companions])
    inside = storage.split_inside(location)[1]
    return InputSource(location, size, key_of([digest, inside]) if inside else digest)


def _place(state: NDArray[np.uint64], split: Mapping[str, float]) -> NDArray[np.int64]:
    bounds = np.cumsum(list(split.values()))
    return np.minimum(np.searchsorted(bounds, _mix(state), side="right"), len(bounds) - 1).astype(np.int64)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return independent uniform numbers in [0, 1) for integers: the finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        state = state * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) / float(1 << 53)
