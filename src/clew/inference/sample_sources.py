"""The samples of an evaluation or prediction, as units of limited size. Only the rank that uses a unit reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

from clew.data.dataset import Dataset, Manifest
from clew.data.dataset.sample_store import DiskSamples
from clew.data.prepare import stages
from clew.data.prepare.inputs import input_files, warn_about_input
from clew.data.readers.items import ItemGroups, share_items
from clew.data.table import Table
from clew.data.transforms import Transform
from clew.errors import DataError, nearest
from clew.recipe import Recipe
from clew.runs import Run

Unit = Callable[[], Table]
"""Reads and prepares some samples. The result may be empty."""

_MAX_BATCHES = 256
"""Largest number of batches per unit: the cost of sending a result is then negligible."""
_MAX_BYTES = 16 << 20
"""Approximate largest size of a unit, unless a single batch is larger."""
_MIN_UNITS = 8
"""Smallest number of units per rank, if there are enough batches, so that ranks finish together."""


class SampleSource(Protocol):
    """Where samples come from. It is sent between processes."""

    @property
    def ahead(self) -> int:
        """Number of units that a thread reads in advance; 0 for samples in memory."""

    @property
    def title(self) -> str:
        """Name of the samples, for the report."""

    @property
    def total(self) -> int | None:
        """Number of samples, if it is known."""

    def check(self, columns: Sequence[str]) -> None:
        """Check that these columns exist.

        Raises:
            DataError: A column is missing.
        """

    def units(self, size: int, ranks: int) -> Iterator[Unit]:
        """Yield all samples in order, in the same units on every rank. A unit holds complete batches of `size`, except
        for the last ones."""


@dataclass(frozen=True)
class DatasetSplit:
    """A split of a dataset."""

    path: Path
    split: str
    ahead: ClassVar[int] = 1

    @classmethod
    def of(cls, data: str | Path | Dataset, split: str | None) -> DatasetSplit:
        """Return a split of a dataset; by default `test`, or `val` if there is no `test`.

        Raises:
            DataError: There is no such split, or it is empty.
        """
        dataset = data if isinstance(data, Dataset) else Dataset(data)
        split = split or next((name for name in ("test", "val") if dataset.splits.get(name)), "test")
        if split not in dataset.splits:
            raise DataError(f"{dataset.path}: no split '{split}'{nearest(split, dataset.splits)}")
        if not dataset.splits[split]:
            raise DataError(f"{dataset.path}: the split '{split}' is empty")
        return cls(dataset.path.absolute(), split)

    @property
    def title(self) -> str:
        return f"{self.path.name}, split {self.split}"

    @property
    def total(self) -> int | None:
        return Dataset(self.path).splits[self.split]

    def check(self, columns: Sequence[str]) -> None:
        schema = Dataset(self.path).schema
        for name in columns:
            if name not in schema:
                raise DataError(f"{self.path}: no column '{name}', which the model needs{nearest(name, schema)}")

    def units(self, size: int, ranks: int) -> Iterator[Unit]:
        """Yield units of several complete batches, few enough that every rank has work."""
        dataset = Dataset(self.path)
        shards = dataset.manifest.splits[self.split]
        disk, total = DiskSamples(dataset, self.split, None), dataset.splits[self.split]
        sample_bytes = max(sum(shard.bytes for shard in shards) // total, 1)
        batches = min(_MAX_BATCHES, _MAX_BYTES // (sample_bytes * size), total // (size * ranks * _MIN_UNITS))
        step = size * max(batches, 1)
        return (partial(disk.read_range, first, min(first + step, total)) for first in range(0, total, step))


@dataclass(frozen=True)
class RawEvents:
    """Raw events. They pass through the recipe and the fitted transforms of a run."""

    run: Run
    recipe: Recipe
    inputs: tuple[str, ...]
    unlabelled: bool = False
    """Whether `Recipe.label_columns` may be missing."""
    ahead: ClassVar[int] = 1
    total: ClassVar[int | None] = None

    @property
    def title(self) -> str:
        return ", ".join(self.inputs)

    def check(self, columns: Sequence[str]) -> None:
        """Do nothing: the recipe that prepares the events reports missing columns."""

    def units(self, size: int, ranks: int) -> Iterator[Unit]:
        """Yield one unit per piece of a file, as its reader divides it."""
        fitted, items = self.fitted_transforms(), self.input_items()
        for location in input_files(self.recipe, self.inputs):
            yield from stages.file_pieces(self.recipe, fitted, location, unlabelled=self.unlabelled, items=items)

    def warn(self) -> None:
        """Warn about what the files lack. Called once, before processes start."""
        warn_about_input(self.recipe, input_files(self.recipe, self.inputs)[0])

    def no_events_error(self) -> DataError:
        """Return the error to raise if no event is left."""
        return stages.no_events_error(self.fitted_transforms())

    def input_items(self) -> ItemGroups | None:
        """Return the columns that were the same items when the dataset was prepared."""
        return Manifest.load(self.run.dataset_file).input_items

    def fitted_transforms(self) -> list[Transform]:
        """Return the transforms with the numbers that were fitted when the dataset was prepared."""
        saved = Manifest.load(self.run.dataset_file).transforms
        return [type(each).model_validate(facts) for each, facts in zip(self.recipe.transforms(), saved, strict=True)]


@dataclass(frozen=True)
class EventsInMemory:
    """Events of a table in memory. They pass through the recipe and the fitted transforms of `source`."""

    source: RawEvents
    table: Table
    title: ClassVar[str] = "events in memory"

    @property
    def ahead(self) -> int:
        """A thread that prepares the next events costs more than it saves if there are few."""
        return int(self.table.nbytes > _MAX_BYTES)

    @property
    def total(self) -> int | None:
        return len(self.table)

    def check(self, columns: Sequence[str]) -> None:
        """Do nothing: the recipe that prepares the events reports missing columns."""

    def units(self, size: int, ranks: int) -> Iterator[Unit]:
        batches = min(_MAX_BATCHES, max(len(self.table) // (size * ranks * _MIN_UNITS), 1))
        if ranks == 1 and not self.ahead:
            batches = -(-len(self.table) // size)  # one unit
        table = share_items(self.table, self.source.input_items() or ())
        yield from stages.table_pieces(self.source.recipe, self.source.fitted_transforms(), table, size * batches)
