"""Which samples make which batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

LANES = 60
"""Ranks that stream own whole lanes of the data; 60 divides evenly among 2, 3, 4, 5, 6, 10, 12, 15, 20 and 30."""


@dataclass(frozen=True)
class Sampler:
    """Seeded batches over `samples`, and this rank's share of each.

    The batches of an epoch depend on (seed, epoch) alone, not on the number of ranks: every sample is in exactly one
    batch, and a batch is cut into shares, some of which may be empty. So a place in the training is an epoch and one
    integer, the number of its batches that are done, at any number of ranks.

    With `lengths`, samples are sorted by length within shuffled windows of `window` batches, so that a batch holds
    samples of similar length and padding is small; the batches are then shuffled. `budget` bounds the items of a batch
    (the longest sample times their number, as padding counts them) as well as `batch_size` bounds its samples.

    `streamed` is for data that is not at hand as a whole: a window then holds whole blocks of neighbouring samples, in
    shuffled order, and a rank's share are the samples of the blocks it owns, the same in every epoch.
    """

    samples: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    shuffle: bool = True
    lengths: NDArray[np.integer] | None = None
    window: int = 100
    budget: int | None = None
    streamed: bool = False

    def steps(self, epoch: int = 0) -> int:
        """Batches of an epoch, the same on every rank; only a budget makes it differ from epoch to epoch."""
        if self.budget is None and not self.streamed:
            return -(-self.samples // self.batch_size)
        return len(self.batches(epoch))

    def batches(self, epoch: int) -> list[Numbers]:
        """The sample numbers of every batch of an epoch, over all ranks."""
        return [batch for window in self.windows(epoch) for batch in window]

    def windows(self, epoch: int) -> Iterator[list[Numbers]]:
        """The same, window by window: what is read together where data is streamed."""
        rng = np.random.default_rng([self.seed, epoch])
        for numbers in self._streamed(rng) if self.streamed else self._shuffled(rng):
            yield self._cut(numbers, rng)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Numbers]:
        """This rank's sample numbers, batch by batch, from batch `start` on."""
        for batch in self.batches(epoch)[start:]:
            yield self.share(batch)

    def share(self, batch: Numbers) -> Numbers:
        """This rank's part of a batch."""
        if self.ranks == 1:
            return batch
        if self.streamed:
            return batch[self.owned(batch)]
        return batch[len(batch) * self.rank // self.ranks : len(batch) * (self.rank + 1) // self.ranks]

    def owned(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Whether this rank is the one that reads a sample, where samples are streamed."""
        return np.asarray(numbers // self.block % self.lanes * self.ranks // self.lanes == self.rank)

    @property
    def lanes(self) -> int:
        """The smallest parts of the data that ranks own."""
        return max(LANES, self.ranks)

    @cached_property
    def block(self) -> int:
        """Neighbouring samples that are read together: a window has two blocks of every lane."""
        return max(1, self.batch_size * self.window // (2 * self.lanes))

    def _shuffled(self, rng: np.random.Generator) -> Iterator[Numbers]:
        order = np.arange(self.samples, dtype=np.int64)
        if self.shuffle:
            rng.shuffle(order)
        yield from _pieces(order, self.samples if self.lengths is None else self.batch_size * self.window)

    def _streamed(self, rng: np.random.Generator) -> Iterator[Numbers]:
        """Windows of whole blocks, an equal part of every lane in each: all ranks have work in all of them."""
        count = max(1, round(self.samples / (self.batch_size * self.window)))
        blocks = np.arange(-(-self.samples // self.block), dtype=np.int64)
        if self.shuffle:
            rng.shuffle(blocks)
        lanes = [blocks[blocks % self.lanes == lane] for lane in range(self.lanes)]
        for number in range(count):
            chosen = [lane[len(lane) * number // count : len(lane) * (number + 1) // count] for lane in lanes]
            starts = np.sort(np.concatenate(chosen)) * self.block
            numbers = (starts[:, None] + np.arange(self.block)).ravel()
            numbers = numbers[numbers < self.samples]
            if self.shuffle:
                rng.shuffle(numbers)
            yield numbers

    def _cut(self, numbers: Numbers, rng: np.random.Generator) -> list[Numbers]:
        """The batches of a window."""
        if self.lengths is None:
            return _pieces(numbers, self.batch_size)
        by_length = numbers[np.argsort(self.lengths[numbers], kind="stable")]
        found = self._bounded(by_length)
        return [found[place] for place in rng.permutation(len(found))] if self.shuffle else found

    def _bounded(self, by_length: Numbers) -> list[Numbers]:
        """Batches of samples sorted by length, none larger than the size and the budget allow (but for one alone)."""
        if self.budget is None:
            return _pieces(by_length, self.batch_size)
        assert self.lengths is not None
        lengths = self.lengths[by_length].astype(np.int64)
        found, first = [], 0
        while first < len(by_length):
            near = lengths[first : first + self.batch_size]
            fits = int((np.arange(1, len(near) + 1) * near <= self.budget).sum())  # grows with every sample
            found.append(by_length[first : first + max(fits, 1)])
            first += max(fits, 1)
        return found


def _pieces(numbers: Numbers, size: int) -> list[Numbers]:
    return [numbers[first : first + size] for first in range(0, len(numbers), max(size, 1))]
