"""Which samples make which batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Sampler:
    """Seeded batches over `samples`, and this rank's share of each.

    The batches of an epoch depend on (seed, epoch) alone, not on the number of ranks: every sample is in exactly one
    batch, the last batch may be smaller, and a batch is cut into shares, some of which may be empty. So a place in the
    training is one integer, the step, at any number of ranks.

    With `lengths`, samples are sorted by length within shuffled windows of `window` batches, so that a batch holds
    samples of similar length and padding is small; the batches are then shuffled. `budget` bounds the items of a batch
    (the longest sample times their number, as padding counts them) as well as `batch_size` bounds its samples.
    """

    samples: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    shuffle: bool = True
    lengths: Numbers | None = None
    window: int = 100
    budget: int | None = None

    @property
    def steps(self) -> int:
        """Batches an epoch, the same on every rank; with a budget, those of the first epoch."""
        return -(-self.samples // self.batch_size) if self.budget is None else len(self.batches(0))

    def batches(self, epoch: int) -> list[Numbers]:
        """The sample numbers of every batch of an epoch, over all ranks."""
        rng = np.random.default_rng([self.seed, epoch])
        order = np.arange(self.samples, dtype=np.int64)
        if self.shuffle:
            rng.shuffle(order)
        if self.lengths is None:
            return _cut(order, self.batch_size)
        found = []
        for window in _cut(order, self.batch_size * self.window):
            by_length = window[np.argsort(self.lengths[window], kind="stable")]
            found += self._bounded(by_length)
        return [found[place] for place in rng.permutation(len(found))] if self.shuffle else found

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Numbers]:
        """This rank's sample numbers, batch by batch, from batch `start` on."""
        for batch in self.batches(epoch)[start:]:
            yield batch[len(batch) * self.rank // self.ranks : len(batch) * (self.rank + 1) // self.ranks]

    def _bounded(self, sorted_samples: Numbers) -> list[Numbers]:
        """Batches of samples sorted by length, none larger than the size and the budget allow (but for one alone)."""
        if self.budget is None:
            return _cut(sorted_samples, self.batch_size)
        assert self.lengths is not None
        lengths = self.lengths[sorted_samples]
        found, first = [], 0
        for place in range(1, len(sorted_samples) + 1):
            full = place - first >= self.batch_size
            if place == len(sorted_samples) or full or (place - first + 1) * lengths[place] > self.budget:
                found.append(sorted_samples[first:place])
                first = place
        return found


def _cut(order: Numbers, size: int) -> list[Numbers]:
    return [order[first : first + size] for first in range(0, len(order), size)]
