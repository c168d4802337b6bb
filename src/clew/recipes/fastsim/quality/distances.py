"""Distances between two sources of showers in the space of their features: Frechet and kernel distance.

Both are those of the CaloChallenge (Kansal et al., arXiv:2211.10295): features are divided by their largest absolute
value in the true source. The Frechet distance is that of two normal distributions with the means and covariances of the
sources. The kernel distance is the unbiased squared maximum mean discrepancy with a polynomial kernel of degree 4.

The Frechet distance of finite samples is too large by a term in 1 / showers. The public code draws samples of different
sizes with replacement and extrapolates to infinitely many showers; its distance of a source to itself is above 0, and
it needs 50,000 showers. Here the distances within each source, which have the same bias, are subtracted instead.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew.recipes.fastsim.geometry import Floats

GROUPS = 10
"""Number of groups of showers for errors; even."""
KERNEL_SHOWERS = 5000
"""Largest number of showers in a group for the kernel distance."""
KERNEL_DEGREE = 4


class Distance(NamedTuple):
    """A distance with its error."""

    value: float
    error: float


def frechet_distance(true: NDArray[np.floating], generated: NDArray[np.floating], *, seed: int = 0) -> Distance:
    """Return the Frechet distance of features (showers, features) without the bias of finite samples.

    Each source is divided into halves. The value is the mean distance between halves of different sources, less the
    mean distance between halves of the same source. It may be below 0 within its error, which is that of the jackknife
    over groups of showers. Compare values of equal numbers of showers: a rest of the bias stays if sources differ.

    Args:
        true: Features of true showers.
        generated: Features of generated showers. Of the longer source only the first showers are used.
        seed: Seed of the division into groups.

    Example:
        >>> import numpy as np
        >>> features = np.random.default_rng(1).normal(size=(4000, 3))
        >>> distance = frechet_distance(features, features[::-1] + 2 * np.abs(features).max(axis=0))
        >>> round(distance.value)  # 2 squared, for each of 3 features divided by their largest value
        12
    """
    first, second = _shuffled(true, generated, seed)
    centre = first.mean(axis=0)  # keeps the sums of squares small
    groups = [[_Moments.of(part - centre) for part in np.array_split(each, GROUPS)] for each in (first, second)]
    omitted = np.array(
        [_unbiased(*([*each[:place], *each[place + 1 :]] for each in groups)) for place in range(GROUPS)]
    )
    error = np.sqrt((GROUPS - 1) / GROUPS * ((omitted - omitted.mean()) ** 2).sum())
    return Distance(_unbiased(*groups), float(error))


def kernel_distance(true: NDArray[np.floating], generated: NDArray[np.floating], *, seed: int = 0) -> Distance:
    """Return the kernel distance of features (showers, features): the median over groups of showers.

    The error is that of the median: half the width of the central 68% of the groups, times 1.25 / sqrt(groups).

    Args:
        true: Features of true showers.
        generated: Features of generated showers. Of the longer source only the first showers are used.
        seed: Seed of the division into groups.

    Example:
        >>> import numpy as np
        >>> features = np.random.default_rng(1).normal(size=(4000, 3))
        >>> kernel_distance(features, features + 1).value > 0.1
        True
    """
    first, second = _shuffled(true, generated, seed)
    size = min(KERNEL_SHOWERS, len(first) // GROUPS)
    values = [
        _squared_discrepancy(first[start : start + size], second[start : start + size])
        for start in range(0, GROUPS * size, size)
    ]
    low, high = np.quantile(values, (0.16275, 0.83725))
    return Distance(float(np.median(values)), float(high - low) / 2 * 1.25 / GROUPS**0.5)


def _shuffled(true: NDArray[np.floating], generated: NDArray[np.floating], seed: int) -> tuple[Floats, Floats]:
    """Return equally many features of both, scaled, in random order."""
    largest = np.abs(true).max(axis=0)
    scale = np.where(largest > 0, largest, 1.0)
    count, random = min(len(true), len(generated)), np.random.default_rng(seed)
    first, second = (random.permutation(each[:count]).astype(np.float64) / scale for each in (true, generated))
    return first, second


class _Moments(NamedTuple):
    """Sums over showers, from which means and covariances of unions of groups follow."""

    showers: int
    total: Floats
    squares: Floats

    @classmethod
    def of(cls, features: Floats) -> _Moments:
        return cls(len(features), features.sum(axis=0), features.T @ features)


class _Normal(NamedTuple):
    """A normal distribution."""

    mean: Floats
    covariance: Floats
    root: Floats
    """Square root of the covariance."""

    @classmethod
    def of(cls, groups: list[_Moments]) -> _Normal:
        count = sum(each.showers for each in groups)
        mean = np.sum([each.total for each in groups], axis=0) / count
        squares = np.sum([each.squares for each in groups], axis=0)
        covariance = (squares - count * np.outer(mean, mean)) / (count - 1)
        values, vectors = np.linalg.eigh(covariance)
        return cls(mean, covariance, (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)

    def distance(self, other: _Normal) -> float:
        """Return the squared Frechet distance."""
        both = np.linalg.eigvalsh(self.root @ other.covariance @ self.root)
        shift, overlap = self.mean - other.mean, np.sqrt(np.maximum(both, 0.0)).sum()
        return float(shift @ shift + np.trace(self.covariance) + np.trace(other.covariance) - 2 * overlap)


def _unbiased(true: list[_Moments], generated: list[_Moments]) -> float:
    half = len(true) // 2
    first, second = ([_Normal.of(each[:half]), _Normal.of(each[half:])] for each in (true, generated))
    between = np.mean([left.distance(right) for left in first for right in second])
    within = (first[0].distance(first[1]) + second[0].distance(second[1])) / 2
    return float(between - within)


def _squared_discrepancy(first: Floats, second: Floats) -> float:
    def mean(left: Floats, right: Floats, *, same: bool) -> float:
        kernel = (left @ right.T / left.shape[1] + 1.0) ** KERNEL_DEGREE
        if not same:
            return float(kernel.mean())
        return float((kernel.sum() - np.trace(kernel)) / (len(left) * (len(left) - 1)))

    return mean(first, first, same=True) + mean(second, second, same=True) - 2 * mean(first, second, same=False)
