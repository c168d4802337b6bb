"""The batches of a pack: each batch is loaded once for all members."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clew.data.dataset import Dataset
from clew.data.dataset.batch import Batch, RaggedTensor, to_batch
from clew.data.dataset.loader import Loader
from clew.data.dataset.sample_store import MemorySamples
from clew.recipe import Recipe
from clew.training.config import TrainConfig
from clew.training.strategies import Strategy
from clew.training.training_data import make_loader

_MAX_RESIDENT_BYTES = 4 << 30
"""Samples that take fewer bytes are kept on the device."""

SampleNumbers = NDArray[np.int64]


class NumberedBatch(NamedTuple):
    """A batch, and the numbers of its samples in the dataset."""

    batch: Batch
    numbers: SampleNumbers


class EpochBatches(Protocol):
    """The remaining batches of an epoch."""

    waited: float
    """Seconds spent waiting for batches."""

    def take(self) -> NumberedBatch:
        """Return the next batch."""

    def close(self) -> None:
        """End the epoch early."""


class StreamedEpoch:
    """An epoch whose batches the loader makes one by one."""

    def __init__(self, loader: Loader, epoch: int, start: int) -> None:
        self.waited = 0.0
        self._portions = loader.epoch(epoch, start)
        self.close = self._portions.close

    def take(self) -> NumberedBatch:
        started = time.perf_counter()
        portion = next(self._portions)
        self.waited += time.perf_counter() - started
        return NumberedBatch(portion.parts[0], portion.numbers)


class ResidentEpoch:
    """An epoch of samples that are all on the device: a batch is selected by the numbers of its samples."""

    def __init__(self, samples: Batch, batches: Sequence[SampleNumbers], device: torch.device) -> None:
        """Prepare an epoch.

        Args:
            samples: All samples of the dataset, on the device.
            batches: The numbers of the samples of each batch.
            device: Where the samples are.
        """
        self.samples, self.waited = samples, 0.0
        self._batches, self._next = batches, 0
        self._edges = np.cumsum([0, *map(len, batches)])
        self._order = torch.from_numpy(np.concatenate(batches)).to(device)

    def take(self) -> NumberedBatch:
        numbers = self.skip(1)[0]
        rows = self._order[self._edges[self._next - 1] : self._edges[self._next]]
        return NumberedBatch(self.samples.rows(rows), numbers)

    def next_numbers(self, limit: int) -> Tensor:
        """Return the sample numbers of the next batches, (batches, size): at most `limit`, all of the same size."""
        sizes = np.diff(self._edges[self._next : self._next + limit + 1])
        different = np.flatnonzero(sizes != sizes[0])
        stop = self._next + (int(different[0]) if len(different) else len(sizes))
        return self._order[self._edges[self._next] : self._edges[stop]].view(-1, int(sizes[0]))

    def skip(self, count: int) -> Sequence[SampleNumbers]:
        """Skip batches that were taken by `next_numbers`, and return the numbers of their samples."""
        self._next += count
        return self._batches[self._next - count : self._next]

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class PackSamples:
    """The training samples of a pack, as batches on the device. Small samples without ragged columns are kept on an
    accelerator completely."""

    def __init__(self, recipe: Recipe, config: TrainConfig, dataset: Dataset, device: torch.device) -> None:
        self.loader: Loader = make_loader(recipe, config, dataset, Strategy(), device)
        self._device = device
        self._resident: Batch | None = None
        store = self.loader.store
        if device.type != "cpu" and isinstance(store, MemorySamples) and store.table.nbytes < _MAX_RESIDENT_BYTES:
            samples = to_batch(store.table, recipe.columns)
            if not any(isinstance(column, RaggedTensor) for column in samples.columns.values()):
                self._resident = samples.to(device)

    def steps(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return self.loader.sampler.steps(epoch)

    def epoch(self, epoch: int, start: int) -> EpochBatches:
        """Return the batches of an epoch, from batch `start`."""
        batches = self.loader.sampler.batches(epoch)[start:] if self._resident is not None else []
        if self._resident is None or not batches:
            return StreamedEpoch(self.loader, epoch, start)
        return ResidentEpoch(self._resident, batches, self._device)

    def close(self) -> None:
        """End the loader's threads."""
        self.loader.close()
