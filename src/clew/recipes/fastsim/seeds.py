"""Seeds of showers. A seed is turned into noise by `noise.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SEED_LIMIT = 1 << 60
"""Seeds are from 0 to SEED_LIMIT - 1."""


def sample_seeds(numbers: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return a seed for each number, such as the number of a shower, by the mixing function of SplitMix64.

    Example:
        >>> import numpy as np
        >>> sample_seeds(np.arange(3), seed=1).tolist() == sample_seeds(np.arange(1, 3), seed=1).tolist()
        False
    """
    with np.errstate(over="ignore"):
        state = np.uint64(seed % (1 << 63)) * np.uint64(0xD1342543DE82EF95) + numbers.astype(np.uint64)
        state = state * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((state ^ (state >> np.uint64(31))) >> np.uint64(4)).astype(np.int64)


def uniform_numbers(seeds: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a number from 0 to 1 for each seed."""
    return (seeds.astype(np.float64) + 0.5) / SEED_LIMIT
