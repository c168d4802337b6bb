"""Distances of showers against their definitions, on a few showers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.linalg import sqrtm

from clew.recipes.fastsim.geometry import Floats
from clew.recipes.fastsim.quality.distances import Distance, frechet_distance, kernel_distance

RANDOM = np.random.default_rng(7)
TRUE = RANDOM.normal(size=(43, 2)) @ np.array([[1.0, 0.5], [0.0, 2.0]])
GENERATED = RANDOM.normal(0.5, 1.5, size=(40, 2))


def groups(seed: int) -> list[list[Floats]]:
    """Ten groups of four showers of each source, in units of the largest true value."""
    random, largest = np.random.default_rng(seed), np.abs(TRUE).max(axis=0)
    return [np.array_split(random.permutation(each[:40]) / largest, 10) for each in (TRUE, GENERATED)]


def frechet(first: list[Floats], second: list[Floats]) -> float:
    x, y = np.concatenate(first), np.concatenate(second)
    c, d = np.cov(x.T), np.cov(y.T)
    return float(((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(c + d - 2 * np.real(sqrtm(c @ d))))


def unbiased(sources: list[list[Floats]]) -> float:
    halves = [(each[: len(each) // 2], each[len(each) // 2 :]) for each in sources]
    between = [frechet(left, right) for left, right in itertools.product(*halves)]
    return float(np.mean(between) - np.mean([frechet(*each) for each in halves]))


@pytest.mark.parametrize("seed", [0, 5])
def test_the_frechet_distance_is_that_of_halves_less_that_within_sources(seed: int) -> None:
    """Its error is that of the jackknife: each group is left out once."""
    omitted = np.array(
        [unbiased([[*each[:place], *each[place + 1 :]] for each in groups(seed)]) for place in range(10)]
    )
    expected = Distance(unbiased(groups(seed)), float(np.sqrt(9 / 10 * ((omitted - omitted.mean()) ** 2).sum())))
    assert frechet_distance(TRUE, GENERATED, seed=seed) == pytest.approx(expected, rel=1e-8)


def discrepancy(x: Floats, y: Floats) -> float:
    def kernel(a: Floats, b: Floats) -> float:
        return float((a @ b / 2 + 1) ** 4)

    pairs = list(itertools.permutations(range(4), 2))
    same = sum(np.mean([kernel(each[i], each[j]) for i, j in pairs]) for each in (x, y))
    return float(same - 2 * np.mean([kernel(a, b) for a in x for b in y]))


@pytest.mark.parametrize("seed", [0, 5])
def test_the_kernel_distance_is_the_median_of_groups(seed: int) -> None:
    values = [discrepancy(x, y) for x, y in zip(*groups(seed), strict=True)]
    low, high = np.quantile(values, [0.16275, 0.83725])
    expected = Distance(float(np.median(values)), float((high - low) / 2 * 1.25 / np.sqrt(10)))
    assert kernel_distance(TRUE, GENERATED, seed=seed) == pytest.approx(expected, rel=1e-8)


def test_a_feature_that_is_always_0_changes_no_distance() -> None:
    wider = [np.concatenate([each, np.zeros((len(each), 1))], axis=1) for each in (TRUE, GENERATED)]
    assert frechet_distance(*wider) == pytest.approx(frechet_distance(TRUE, GENERATED), rel=1e-6)
