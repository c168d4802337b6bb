"""The manifest of a dataset, and reading splits through it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import h5py
import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from clew import storage
from clew.core.config import Section
from clew.core.files import sha256, write_text
from clew.data.table import Field, Table, concat, hdf5
from clew.errors import DataError, nearest

MANIFEST = "manifest.json"
LENGTHS = "lengths.h5"


class Shard(Section):
    """One HDF5 file of a dataset."""

    file: str
    events: int
    bytes: int
    sha256: str


class Input(Section):
    """One raw file a dataset was made from. Its name is for people: identity is the hash."""

    name: str
    bytes: int
    sha256: str
    events: int
    """Of these how many are in the dataset."""
    split: str = ""
    """Where all of them went, if that was said."""


class Manifest(Section):
    """Everything about a dataset but its data. Holds no time, host or path, so equal data has equal manifests."""

    format: Literal[1] = 1
    key: str
    """Identity: the hash of the inputs' content, the settings and the code that made it."""
    recipe: str
    columns: dict[str, dict[str, Any]]
    splits: dict[str, tuple[Shard, ...]]
    inputs: tuple[Input, ...]
    settings: dict[str, Any]
    transforms: tuple[dict[str, Any], ...]
    """The transforms with their fitted numbers, to be applied again to new events."""
    item_sets: dict[str, str]
    """For each ragged column the first that describes the same items."""
    lengths: Shard
    """Items an event, by split and set of items."""
    statistics: dict[str, dict[str, float]]
    """Count, min, max, mean and std of every column."""
    versions: dict[str, str]
    """What made it; no part of the key."""

    def events(self, split: str) -> int:
        """How many samples a split has."""
        return sum(shard.events for shard in self.splits[split])

    def save(self, folder: Path) -> None:
        """Write into a dataset's folder: the last file, whose presence makes it a dataset."""
        write_text(folder / MANIFEST, json.dumps(self.model_dump(mode="json"), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a manifest file.

        Raises:
            DataError: it is missing or not one.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise DataError(f"{path.parent}: no dataset there (no {MANIFEST}); `clew prepare` makes one") from None
        except (ValidationError, NotADirectoryError) as error:
            raise DataError(f"{path}: not a dataset's manifest of format 1 ({type(error).__name__})") from error


_held: dict[tuple[Any, ...], Table] = {}
_most = 0


def hold(splits: int) -> None:
    """From now on keep so many of the splits that were read last in memory: this process does one training after the
    other, and what a dataset holds never changes."""
    global _most
    _most = splits
    while len(_held) > splits:
        del _held[next(iter(_held))]


class Dataset:
    """A prepared dataset, opened for reading. Cheap to make; shards are opened when read.

    One in a store (`s3://...`, `root://...`, `rucio:scope:name`) is copied to this machine's cache of inputs first.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = storage.folder(str(path)) if storage.is_url(str(path)) else Path(path)
        self.manifest = Manifest.load(self.path / MANIFEST)

    @property
    def splits(self) -> dict[str, int]:
        """The splits and their numbers of samples."""
        return {name: self.manifest.events(name) for name in self.manifest.splits}

    @property
    def schema(self) -> dict[str, Field]:
        """What the columns are."""
        return {
            name: Field(**{**facts, "shape": tuple(facts["shape"])}) for name, facts in self.manifest.columns.items()
        }

    def read(self, split: str, *, columns: Sequence[str] | None = None) -> Table:
        """A whole split as one table.

        Raises:
            DataError: no such split, it is empty, or a shard is missing or damaged.
        """
        key = (self.manifest.key, str(self.path.absolute()), split, None if columns is None else tuple(columns))
        if key in _held:
            _held[key] = _held.pop(key)  # now the last to go
            return _held[key]
        while len(_held) >= max(_most, 1):
            del _held[next(iter(_held))]
        tables = list(self.shards(split, columns=columns))
        if not tables:
            hint = "give it a share with prepare.split, or files with prepare.input"
            raise DataError(f"{self.path}: the split '{split}' is empty; {hint}")
        table = concat(tables)
        if _most:
            _held[key] = table
        return table

    def shards(self, split: str, *, columns: Sequence[str] | None = None) -> Iterator[Table]:
        """A split, a shard at a time."""
        if split not in self.manifest.splits:
            raise DataError(f"{self.path}: no split '{split}'{nearest(split, self.manifest.splits)}")
        for shard in self.manifest.splits[split]:
            table = hdf5.load(self.path / shard.file, columns=columns)
            if len(table) != shard.events:
                raise DataError(f"{self.path / shard.file}: {len(table)} events, the manifest says {shard.events}")
            yield table

    def rows(self, split: str, shard: int, start: int, stop: int, *, columns: Sequence[str] | None = None) -> Table:
        """Samples start to stop of one shard of a split, touching only their bytes."""
        return hdf5.load(self.path / self.manifest.splits[split][shard].file, start=start, stop=stop, columns=columns)

    def same_items(self, column: str) -> set[str]:
        """The columns that describe the same items as a ragged one."""
        sets = self.manifest.item_sets
        return {name for name, items in sets.items() if items == sets.get(column)}

    def lengths(self, split: str, column: str) -> NDArray[np.int32]:
        """Items an event of a ragged column, without opening a shard."""
        items = self.manifest.item_sets.get(column)
        if items is None:
            raise DataError(f"{self.path}: '{column}' is no ragged column{nearest(column, self.manifest.item_sets)}")
        try:
            with h5py.File(self.path / LENGTHS, "r") as file:
                return np.asarray(file[split][items], dtype=np.int32)
        except (OSError, KeyError) as error:
            raise DataError(f"{self.path / LENGTHS}: missing or damaged ({error})") from error

    @property
    def complete(self) -> bool:
        """Whether every shard is there at its full size; `verify` reads them too."""
        shards = [shard for found in self.manifest.splits.values() for shard in found]
        paths = [(self.path / shard.file, shard.bytes) for shard in (*shards, self.manifest.lengths)]
        return all(path.is_file() and path.stat().st_size == size for path, size in paths)

    def verify(self) -> None:
        """Read every byte and compare checksums.

        Raises:
            DataError: names the first shard that is missing or altered.
        """
        for shards in (*self.manifest.splits.values(), (self.manifest.lengths,)):
            for shard in shards:
                path = self.path / shard.file
                if not path.is_file():
                    raise DataError(f"{path}: shard is missing")
                if sha256(path) != shard.sha256:
                    raise DataError(f"{path}: shard was altered or cut")
