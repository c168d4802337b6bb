"""Samples to be judged or predicted, as units of bounded size that are read only by who works on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

from clew.data.dataset import Dataset, Manifest
from clew.data.dataset.sample_store import Disk
from clew.data.prepare import stages
from clew.data.prepare.inputs import locations
from clew.data.table import Table
from clew.data.transforms import Transform
from clew.errors import DataError, nearest
from clew.recipe import Recipe
from clew.runs import Run

Unit = Callable[[], Table]
"""Reads and prepares some samples; there may be none."""

_BATCHES = 256
"""Most batches of a unit: enough for the cost of handing it on not to count."""
_BYTES = 16 << 20
"""About the most of a unit, unless a single batch is larger."""
_SHARES = 8
"""Units of a rank at least, if there are batches enough: all have work to the end, and somebody sees it go on."""


class SampleSource(Protocol):
    """Where samples come from. Travels between processes."""

    @property
    def ahead(self) -> int:
        """Units that are read, in a thread, before they are needed; 0 for what is in memory."""

    @property
    def title(self) -> str:
        """What they are called."""

    @property
    def total(self) -> int | None:
        """How many samples there are, where that is known."""

    def check(self, columns: Sequence[str]) -> None:
        """That these columns are there.

        Raises:
            DataError: one is not.
        """

    def units(self, size: int, ranks: int) -> Iterator[Unit]:
        """All samples in order, in the same units on each of so many ranks. A unit is whole batches of `size`, but for
        the last ones."""


@dataclass(frozen=True)
class DatasetSplit:
    """A split of a dataset."""

    path: Path
    split: str
    ahead: ClassVar[int] = 1

    @classmethod
    def of(cls, data: str | Path | Dataset, split: str | None) -> DatasetSplit:
        """`split` of a dataset, or where none is named its `test`, or `val`.

        Raises:
            DataError: there is none, or it is empty.
        """
        dataset = data if isinstance(data, Dataset) else Dataset(data)
        split = split or next((each for each in ("test", "val") if dataset.splits.get(each)), "test")
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
        known = Dataset(self.path).schema
        for name in columns:
            if name not in known:
                raise DataError(f"{self.path}: no column '{name}', which the model needs{nearest(name, known)}")

    def units(self, size: int, ranks: int) -> Iterator[Unit]:
        """Whole batches of `size`, some at a time: few enough for every rank to have work."""
        dataset = Dataset(self.path)
        shards = dataset.manifest.splits[self.split]
        disk, total = Disk(dataset, self.split, None), dataset.splits[self.split]
        each = max(sum(shard.bytes for shard in shards) // total, 1)
        batches = min(_BATCHES, _BYTES // (each * size), total // (size * ranks * _SHARES))
        step = size * max(batches, 1)
        return (partial(disk.run, first, min(first + step, total)) for first in range(0, total, step))


@dataclass(frozen=True)
class RawEvents:
    """Raw events, which go through a recipe and the transforms a run was trained with."""

    run: Run
    recipe: Recipe
    inputs: tuple[str, ...]
    unlabelled: bool = False
    """Whether they may lack `Recipe.label_columns`."""
    ahead: ClassVar[int] = 1
    total: ClassVar[int | None] = None

    @property
    def title(self) -> str:
        return ", ".join(self.inputs)

    def check(self, columns: Sequence[str]) -> None:
        """What is missing will be told by the recipe that prepares them."""

    def units(self, size: int, ranks: int) -> Iterator[Unit]:
        """A unit a piece of a file, as its reader cuts it."""
        fitted = self._transforms()
        for location in locations(self.inputs):
            yield from stages.units(self.recipe, fitted, location, unlabelled=self.unlabelled)

    def none(self) -> DataError:
        """What to say where no event is left."""
        return stages.none_left(self._transforms())

    def _transforms(self) -> list[Transform]:
        saved = Manifest.load(self.run.dataset_file).transforms
        return [type(each).model_validate(facts) for each, facts in zip(self.recipe.transforms(), saved, strict=True)]
