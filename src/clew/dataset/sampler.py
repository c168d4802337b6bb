"""Which samples make which batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Sampler:
    """Seeded batches over `samples`, and this rank's share of each.

    The batches of an epoch depend on (seed, epoch) alone, not on the number of ranks: every sample is in exactly
    one batch, the last batch may be smaller, and a batch is cut into contiguous shares, some of which may be empty.
    """

    samples: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    shuffle: bool = True

    @property
    def steps(self) -> int:
        """Batches an epoch, the same on every rank."""
        return -(-self.samples // self.batch_size)

    def epoch(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        """This rank's sample numbers, batch by batch."""
        order = np.arange(self.samples, dtype=np.int64)
        if self.shuffle:
            np.random.default_rng([self.seed, epoch]).shuffle(order)
        for step in range(self.steps):
            batch = order[step * self.batch_size : (step + 1) * self.batch_size]
            yield batch[len(batch) * self.rank // self.ranks : len(batch) * (self.rank + 1) // self.ranks]
