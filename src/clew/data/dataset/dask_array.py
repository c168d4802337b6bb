"""A prepared dataset as an array of dask-awkward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clew.data.dataset.manifest import Dataset
from clew.data.table import Field, Ragged, Table
from clew.errors import ConfigError, DataError, nearest


@dataclass(frozen=True)
class ReadShard:
    """Reads one shard of a split as an awkward array. It is sent to the workers of dask.

    Args:
        path: Folder of the dataset.
        split: Name of the split.
        columns: The columns to read.
    """

    path: Path
    split: str
    columns: tuple[str, ...]

    def __call__(self, shard: int) -> Any:
        dataset = Dataset(self.path)
        events = dataset.manifest.splits[self.split][shard].events
        return dataset.rows(self.split, shard, 0, events, columns=self.columns).to_awkward()


def to_dask(dataset: Dataset, split: str, columns: Sequence[str] | None) -> Any:
    """Return a split as a dask-awkward array; see `Dataset.to_dask`."""
    try:
        from dask_awkward.lib.core import typetracer_array
        from dask_awkward.lib.io.io import from_map
    except ImportError as error:
        raise ConfigError(f"to_dask needs dask-awkward (pip install 'clew[dask-awkward]'): {error}") from error
    shards = dataset.manifest.splits.get(split)
    if not shards:
        raise DataError(f"{dataset.path}: no events in the split '{split}'{nearest(split, dataset.manifest.splits)}")
    schema = dataset.schema
    for name in columns or ():
        if name not in schema:
            raise DataError(f"{dataset.path}: no column '{name}'{nearest(name, schema)}")
    names = tuple(schema if columns is None else columns)
    read = ReadShard(dataset.path.absolute(), split, names)
    empty = Table({name: _empty(schema[name]) for name in names}).to_awkward()
    return from_map(read, range(len(shards)), label=f"clew-{split}", meta=typetracer_array(empty))


def _empty(field: Field) -> np.ndarray[Any, Any] | Ragged:
    values: np.ndarray[Any, Any] = np.empty((0, *field.shape), dtype=field.dtype)
    return Ragged(values, np.zeros(1, dtype=np.int64)) if field.ragged else values
