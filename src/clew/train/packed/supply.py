"""The samples of a pack: one pass over the data serves all models."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from clew.dataset import Dataset
from clew.dataset.batch import Batch, RaggedTensor, to_batch
from clew.dataset.loader import Loader
from clew.dataset.store import Memory
from clew.recipe import Recipe
from clew.train.config import TrainConfig
from clew.train.strategies import Strategy
from clew.train.supply import make_loader

_RESIDENT = 4 << 30
"""Bytes of samples that are kept on a device."""


class Portion(NamedTuple):
    """A batch, and the numbers of its samples."""

    batch: Batch
    numbers: NDArray[np.int64]


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

    def epoch(self, epoch: int, start: int) -> Generator[Portion, None, None]:
        """The batches of an epoch from `start` on."""
        if self._whole is None:
            portions = self.loader.epoch(epoch, start)
            try:
                for portion in portions:
                    yield Portion(portion.parts[0], portion.numbers)
            finally:
                portions.close()
            return
        batches = self.loader.sampler.batches(epoch)[start:]
        if not batches:
            return
        order, first = torch.from_numpy(np.concatenate(batches)).to(self._device), 0
        for numbers in batches:
            chosen = order[first : first + len(numbers)]
            first += len(numbers)
            yield Portion(self._whole.rows(chosen), numbers)

    def close(self) -> None:
        """Let go of what was made ready."""
        self.loader.close()
