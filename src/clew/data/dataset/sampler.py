"""The sampler: which samples are in which batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clew.data.dataset.balance import divide_by_cost

Numbers = NDArray[np.int64]

OWNERS = 60
"""If samples are streamed, each rank reads a fixed part of the data. There are 60 parts, which divide evenly among 2,
3,
4, 5, 6, 10, 12, 15, 20 and 30 ranks."""


@dataclass(frozen=True)
class Sampler:
    """Batches of sample numbers from a seed, and the share of one rank of each batch.

    The batches of an epoch depend on the seed and the epoch only, not on the number of ranks. Every sample is in
    exactly one batch. A batch is divided into one share per rank; some shares may be empty. The state of a training is
    therefore an epoch and one integer, the number of finished batches, for any number of ranks.

    Args:
        samples: Number of samples.
        batch_size: Largest number of samples per batch, over all ranks.
        seed: Seed of the order.
        rank: Number of this rank.
        ranks: Number of ranks.
        shuffle: Whether the order is random.
        lengths: Number of items of each sample. Samples are then sorted by length within windows, so that a batch
            contains samples of similar length and padding is small; the batches are shuffled after that.
        window: Number of batches of a window.
        budget: Largest number of items per batch, counted with padding: the longest sample times the number of samples.
        streamed: Whether the samples are read from disk or decompressed in blocks of neighbours. A window then contains
            whole blocks in random order, and the share of a rank are the samples of its blocks, which are the same in
            every epoch.
        costs: Cost of each sample, above 0. The ranks then share a batch by cost (`divide_by_cost`) instead of by
            number of samples. It has no effect on samples that are streamed: their ranks are fixed.

    Example:
        >>> sampler = Sampler(samples=5, batch_size=2, shuffle=False)
        >>> [batch.tolist() for batch in sampler.batches(epoch=0)]
        [[0, 1], [2, 3], [4]]
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
    costs: NDArray[np.floating] | None = None

    def steps(self, epoch: int = 0) -> int:
        """Return the number of batches of an epoch. It is the same on every rank. Only with a budget does it differ
        between epochs."""
        if self.budget is None and not self.streamed:
            return -(-self.samples // self.batch_size)
        return len(self.batches(epoch))

    def batches(self, epoch: int) -> list[Numbers]:
        """Return the sample numbers of every batch of an epoch, over all ranks."""
        return [batch for window in self.windows(epoch) for batch in window]

    def windows(self, epoch: int) -> Iterator[list[Numbers]]:
        """Yield the batches of each window: the samples of a window are read together if samples are streamed."""
        rng = np.random.default_rng([self.seed, epoch])
        for numbers in self._streamed(rng) if self.streamed else self._shuffled(rng):
            yield self._cut(numbers, rng)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Numbers]:
        """Yield the sample numbers of this rank for each batch, from batch `start`."""
        for batch in self.batches(epoch)[start:]:
            yield self.share(batch)

    def share(self, batch: Numbers) -> Numbers:
        """Return the part of a batch that belongs to this rank."""
        if self.ranks == 1:
            return batch
        if self.streamed:
            return batch[self.owned(batch)]
        if self.costs is not None:
            owners = divide_by_cost(self.costs[batch], self.ranks)
            return batch[np.flatnonzero(owners == self.rank)]
        return batch[len(batch) * self.rank // self.ranks : len(batch) * (self.rank + 1) // self.ranks]

    def owned(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Return whether this rank reads each sample, if samples are streamed."""
        return np.asarray(numbers // self.block % self.owner_count * self.ranks // self.owner_count == self.rank)

    @property
    def owner_count(self) -> int:
        """Number of parts of the data that are assigned to ranks."""
        return max(OWNERS, self.ranks)

    @cached_property
    def block(self) -> int:
        """Number of neighbouring samples that are read together. A window has two blocks of each part."""
        return max(1, self.batch_size * self.window // (2 * self.owner_count))

    def _shuffled(self, rng: np.random.Generator) -> Iterator[Numbers]:
        order = np.arange(self.samples, dtype=np.int64)
        if self.shuffle:
            rng.shuffle(order)
        yield from _pieces(order, self.samples if self.lengths is None else self.batch_size * self.window)

    def _streamed(self, rng: np.random.Generator) -> Iterator[Numbers]:
        """Yield windows of whole blocks, with an equal share of every part, so that all ranks have work in all
        windows."""
        count = max(1, round(self.samples / (self.batch_size * self.window)))
        blocks = np.arange(-(-self.samples // self.block), dtype=np.int64)
        if self.shuffle:
            rng.shuffle(blocks)
        owners = [blocks[blocks % self.owner_count == owner] for owner in range(self.owner_count)]
        for number in range(count):
            chosen = [owner[len(owner) * number // count : len(owner) * (number + 1) // count] for owner in owners]
            starts = np.sort(np.concatenate(chosen)) * self.block
            numbers = (starts[:, None] + np.arange(self.block)).ravel()
            numbers = numbers[numbers < self.samples]
            if self.shuffle:
                rng.shuffle(numbers)
            yield numbers

    def _cut(self, numbers: Numbers, rng: np.random.Generator) -> list[Numbers]:
        """Return the batches of a window."""
        if self.lengths is None:
            return _pieces(numbers, self.batch_size)
        by_length = numbers[np.argsort(self.lengths[numbers], kind="stable")]
        batches = self._bounded(by_length)
        return [batches[place] for place in rng.permutation(len(batches))] if self.shuffle else batches

    def _bounded(self, by_length: Numbers) -> list[Numbers]:
        """Return batches of samples that are sorted by length. No batch is larger than the size and the budget allow,
        except for a single sample."""
        if self.budget is None:
            return _pieces(by_length, self.batch_size)
        assert self.lengths is not None
        lengths = self.lengths[by_length].astype(np.int64)
        batches, first = [], 0
        while first < len(by_length):
            candidate_lengths = lengths[first : first + self.batch_size]
            count = int(
                (np.arange(1, len(candidate_lengths) + 1) * candidate_lengths <= self.budget).sum()
            )  # grows with every sample
            batches.append(by_length[first : first + max(count, 1)])
            first += max(count, 1)
        return batches


def _pieces(numbers: Numbers, size: int) -> list[Numbers]:
    return [numbers[first : first + size] for first in range(0, len(numbers), max(size, 1))]
