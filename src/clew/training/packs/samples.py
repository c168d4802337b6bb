"""The samples of a pack: one pass over the data serves all models."""

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
from clew.data.dataset.sample_store import Memory
from clew.recipe import Recipe
from clew.training.config import TrainConfig
from clew.training.strategies import Strategy
from clew.training.training_data import make_loader

_RESIDENT = 4 << 30
"""Bytes of samples that are kept on a device."""

Numbers = NDArray[np.int64]


class Portion(NamedTuple):
    """A batch, and the numbers of its samples."""

    batch: Batch
    numbers: Numbers


class Epoch(Protocol):
    """What is left of an epoch, batch by batch."""

    waited: float
    """Seconds spent waiting for batches."""

    def take(self) -> Portion:
        """The next batch."""

    def close(self) -> None:
        """No more are wanted."""


class Streamed:
    """An epoch whose batches are made as they are wanted."""

    def __init__(self, loader: Loader, epoch: int, start: int) -> None:
        self.waited = 0.0
        self._portions = loader.epoch(epoch, start)
        self.close = self._portions.close

    def take(self) -> Portion:
        begun = time.perf_counter()
        found = next(self._portions)
        self.waited += time.perf_counter() - begun
        return Portion(found.parts[0], found.numbers)


class Resident:
    """An epoch of samples that live on the device as a whole: a batch is a few numbers."""

    def __init__(self, whole: Batch, batches: Sequence[Numbers], device: torch.device) -> None:
        self.whole, self.waited = whole, 0.0
        self._batches, self._place = batches, 0
        self._ends = np.cumsum([0, *map(len, batches)])
        self._order = torch.from_numpy(np.concatenate(batches)).to(device)

    def take(self) -> Portion:
        numbers = self.skip(1)[0]
        return Portion(self.whole.rows(self._order[self._ends[self._place - 1] : self._ends[self._place]]), numbers)

    def ahead(self, most: int) -> Tensor:
        """The numbers of coming batches, (batches, size), as many as have the size of the next one, but `most`."""
        sizes = np.diff(self._ends[self._place : self._place + most + 1])
        odd = np.flatnonzero(sizes != sizes[0])
        last = self._place + (int(odd[0]) if len(odd) else len(sizes))
        return self._order[self._ends[self._place] : self._ends[last]].view(-1, int(sizes[0]))

    def skip(self, count: int) -> Sequence[Numbers]:
        """Batches that were taken by their numbers."""
        self._place += count
        return self._batches[self._place - count : self._place]

    def close(self) -> None:
        pass


class Supply:
    """Batches on the device, in the order of the sampler. Small flat samples live on an accelerator as a whole."""

    def __init__(self, recipe: Recipe, config: TrainConfig, dataset: Dataset, device: torch.device) -> None:
        self.loader: Loader = make_loader(recipe, config, dataset, Strategy(), device)
        self._device = device
        self._whole: Batch | None = None
        store = self.loader.store
        if device.type != "cpu" and isinstance(store, Memory) and store.table.nbytes < _RESIDENT:
            whole = to_batch(store.table, recipe.columns)
            if not any(isinstance(column, RaggedTensor) for column in whole.columns.values()):
                self._whole = whole.to(device)

    def steps(self, epoch: int) -> int:
        """Batches of an epoch."""
        return self.loader.sampler.steps(epoch)

    def epoch(self, epoch: int, start: int) -> Epoch:
        """The batches of an epoch from `start` on."""
        batches = self.loader.sampler.batches(epoch)[start:] if self._whole is not None else []
        if self._whole is None or not batches:
            return Streamed(self.loader, epoch, start)
        return Resident(self._whole, batches, self._device)

    def close(self) -> None:
        """Let go of what was made ready."""
        self.loader.close()
