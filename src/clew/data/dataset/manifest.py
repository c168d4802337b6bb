"""The manifest of a dataset, and the class that reads splits."""

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
from clew.core.format_version import check_format_version
from clew.core.html_table import html_table, shorten
from clew.data.table import Field, Table, concat, hdf5
from clew.errors import DataError, nearest

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of datasets. It changes when an older clew could not read a new dataset."""
LENGTHS = "lengths.h5"


class Shard(Section):
    """One HDF5 file of a dataset."""

    file: str
    events: int
    bytes: int
    sha256: str


class InputFile(Section):
    """One raw file from which a dataset was made. The hash is its identity; the name is for people."""

    name: str
    bytes: int
    sha256: str
    events: int
    """Number of its events in the dataset."""
    split: str = ""
    """The split of all of its events, if the settings named one."""


class Manifest(Section):
    """The description of a dataset without its data. It contains no time, host or path, so equal data have equal
    manifests."""

    format: Literal[1] = 1
    key: str
    """The identity of the dataset: a hash of the content of the inputs, the settings and the code that made it."""
    recipe: str
    columns: dict[str, dict[str, Any]]
    splits: dict[str, tuple[Shard, ...]]
    inputs: tuple[InputFile, ...]
    settings: dict[str, Any]
    transforms: tuple[dict[str, Any], ...]
    """The transforms with their fitted numbers, to be applied to new events."""
    item_sets: dict[str, str]
    """For each ragged column, the first one that describes the same items."""
    input_items: tuple[tuple[str, ...], ...] | None = None
    """The columns of the inputs that were the same items in all files. New events are read in the same way. None if
    each file decides."""
    lengths: Shard
    """The file with the number of items per event, by split and set of items."""
    statistics: dict[str, dict[str, float]]
    """Count, min, max, mean and std of every column."""
    preparation: dict[str, Any] | None = None
    """Hashes of the code of the recipe that prepared it, and its transforms. None for older datasets."""
    versions: dict[str, str]
    """Versions of the software that made it. They are no part of the key."""

    def events(self, split: str) -> int:
        """Return the number of samples of a split."""
        return sum(shard.events for shard in self.splits[split])

    def save(self, folder: Path) -> None:
        """Write the manifest to the folder of a dataset. It is written last: the folder is a dataset when the manifest
        exists."""
        write_text(folder / MANIFEST, json.dumps(self.model_dump(mode="json"), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a manifest file.

        Raises:
            DataError: the file is missing, is not a manifest, or was written by a newer clew.
        """
        try:
            content = path.read_bytes()
            check_format_version(path, _format(content), FORMAT, DataError)
            return cls.model_validate_json(content)
        except FileNotFoundError:
            raise DataError(
                f"{path.parent}: no dataset there (no {MANIFEST}); if it was moved, name its new place with --dataset; "
                "`clew prepare` makes one"
            ) from None
        except (ValidationError, NotADirectoryError) as error:
            raise DataError(f"{path}: not a dataset's manifest of format 1 ({type(error).__name__})") from error


def _format(content: bytes) -> object:
    """Return the version that a manifest names; None if it names none."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return data.get("format") if isinstance(data, dict) else None


_split_cache: dict[tuple[Any, ...], Table] = {}
_split_cache_size = 0


def cache_splits(splits: int) -> None:
    """Keep the splits that were read last in memory, for a process that runs one training after the other.

    Args:
        splits: Number of splits to keep. 0 keeps none.
    """
    global _split_cache_size
    _split_cache_size = splits
    while len(_split_cache) > splits:
        del _split_cache[next(iter(_split_cache))]


class Dataset:
    """A prepared dataset, opened for reading. Shards are opened when they are read.

    A dataset in a store (`s3://...`, `root://...`, `rucio:scope:name`) is first copied to the cache of inputs of this
    machine.

    Args:
        path: Folder or URL of the dataset.

    Raises:
        DataError: there is no dataset.

    Example:
        >>> import pathlib, tempfile
        >>> import clew
        >>> class Plain(clew.Recipe):
        ...     def prepare(self, events):
        ...         return events
        ...
        ...     def model(self):
        ...         raise NotImplementedError
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> Table({"pt": [20.0, 30.0, 40.0]}).save(folder / "jets.h5")
        >>> settings = {"split": {"train": 1.0}, "workers": 1}
        >>> _ = clew.prepare(Plain, input=[str(folder / "jets.h5")], output=str(folder / "dataset"), **settings)
        >>> dataset = Dataset(folder / "dataset")
        >>> dataset.splits
        {'train': 3}
        >>> dataset.read("train")
        Table(3 events; pt: float64)
    """

    def __init__(self, path: str | Path) -> None:
        location = storage.check_scheme(str(path))
        self.path = storage.folder(location)
        self.manifest = Manifest.load(self.path / MANIFEST)

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {count:,}" for name, count in self.splits.items())
        return f"Dataset({self.path}: {splits} samples; {shorten([' '.join(row) for row in self._columns()])})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        splits = ", ".join(f"{name} {count:,}" for name, count in self.splits.items())
        return html_table(f"Dataset {self.path}: {splits} samples", self._columns(), header=("column", "type"))

    def _columns(self) -> list[tuple[str, str]]:
        """Name and type of every column."""
        return [
            (name, f"{'ragged ' if field.ragged else ''}{np.dtype(field.dtype)}{list(field.shape) or ''}")
            for name, field in self.schema.items()
        ]

    @property
    def splits(self) -> dict[str, int]:
        """The number of samples of each split."""
        return {name: self.manifest.events(name) for name in self.manifest.splits}

    @property
    def schema(self) -> dict[str, Field]:
        """The description of each column."""
        return {
            name: Field(**{**facts, "shape": tuple(facts["shape"])}) for name, facts in self.manifest.columns.items()
        }

    def read(self, split: str, *, columns: Sequence[str] | None = None) -> Table:
        """Read a whole split as one table.

        Args:
            split: Name of the split.
            columns: The columns to read. None reads all.

        Raises:
            DataError: there is no such split, it is empty, or a shard is missing or damaged.
        """
        key = (self.manifest.key, str(self.path.absolute()), split, None if columns is None else tuple(columns))
        if key in _split_cache:
            _split_cache[key] = _split_cache.pop(key)  # now the last to go
            return _split_cache[key]
        while len(_split_cache) >= max(_split_cache_size, 1):
            del _split_cache[next(iter(_split_cache))]
        tables = list(self.shards(split, columns=columns))
        if not tables:
            hint = "set its share with prepare.split, or its files with prepare.input"
            raise DataError(f"{self.path}: the split '{split}' is empty; {hint}")
        table = concat(tables)
        if _split_cache_size:
            _split_cache[key] = table
        return table

    def shards(self, split: str, *, columns: Sequence[str] | None = None) -> Iterator[Table]:
        """Read a split, one shard at a time.

        Raises:
            DataError: there is no such split, or a shard is missing or damaged.
        """
        if split not in self.manifest.splits:
            raise DataError(f"{self.path}: no split '{split}'{nearest(split, self.manifest.splits)}")
        for shard in self.manifest.splits[split]:
            table = hdf5.load(self.path / shard.file, columns=columns)
            if len(table) != shard.events:
                raise DataError(f"{self.path / shard.file}: {len(table)} events, the manifest says {shard.events}")
            yield table

    def to_dask(self, split: str = "train", *, columns: Sequence[str] | None = None) -> Any:
        """Return a split as a dask-awkward array with one partition per shard. Shards are read when it is computed.

        Args:
            split: Name of the split.
            columns: The columns to read. None reads all.

        Raises:
            DataError: there is no such split or column, or it is empty.
            ConfigError: dask-awkward is not installed.
        """
        from clew.data.dataset.dask_array import to_dask

        return to_dask(self, split, columns)

    def rows(self, split: str, shard: int, start: int, stop: int, *, columns: Sequence[str] | None = None) -> Table:
        """Read the samples from `start` to `stop` of one shard. Only their bytes are read."""
        return hdf5.load(self.path / self.manifest.splits[split][shard].file, start=start, stop=stop, columns=columns)

    def same_items(self, column: str) -> set[str]:
        """Return the columns that describe the same items as a ragged column."""
        sets = self.manifest.item_sets
        return {name for name, items in sets.items() if items == sets.get(column)}

    def lengths(self, split: str, column: str) -> NDArray[np.int32]:
        """Return the number of items per event of a ragged column, without opening a shard.

        Raises:
            DataError: the column does not exist or is not ragged, or the file of lengths is damaged.
        """
        items = self.manifest.item_sets.get(column)
        if items is None:
            raise DataError(f"{self.path}: '{column}' is not a ragged column{nearest(column, self.manifest.item_sets)}")
        try:
            with h5py.File(self.path / LENGTHS, "r") as file:
                return np.asarray(file[split][items], dtype=np.int32)
        except (OSError, KeyError) as error:
            raise DataError(f"{self.path / LENGTHS}: missing or damaged ({error})") from error

    @property
    def complete(self) -> bool:
        """Whether every shard exists with its full size. `verify` also compares the content."""
        shards = [shard for split_shards in self.manifest.splits.values() for shard in split_shards]
        paths = [(self.path / shard.file, shard.bytes) for shard in (*shards, self.manifest.lengths)]
        return all(path.is_file() and path.stat().st_size == size for path, size in paths)

    def verify(self) -> None:
        """Read all files and compare their checksums.

        Raises:
            DataError: a shard is missing or was changed. The message names the first one.
        """
        for shards in (*self.manifest.splits.values(), (self.manifest.lengths,)):
            for shard in shards:
                path = self.path / shard.file
                if not path.is_file():
                    raise DataError(f"{path}: shard is missing")
                if sha256(path) != shard.sha256:
                    raise DataError(f"{path}: shard was changed or is incomplete")
