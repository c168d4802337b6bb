"""Figures of merit of two sources of showers: equal sources, and sources that differ in a known way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from clew.recipes.fastsim.features import Showers
from clew.recipes.fastsim.geometry import Geometry, GeometryConfig
from clew.recipes.fastsim.quality import comparison
from clew.recipes.fastsim.quality.comparison import ShowerQuality
from clew.recipes.fastsim.quality.config import QualityConfig
from clew.recipes.fastsim.quality.distances import frechet_distance, kernel_distance

CELLS = (6, 5, 5)
CONFIG = QualityConfig(seeds=2, epochs=6)
ALL = (comparison.FEATURES, comparison.VOXELS, comparison.LOG_VOXELS)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small networks on a machine that is busy with other tests are fastest with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def geometry() -> Geometry:
    return GeometryConfig(kind="grid", cells=CELLS).load()


def make_showers(seed: int, *, depth: float = 1.0, count: int = 600) -> Showers:
    """Showers of 1 to 100 GeV with fluctuating depth; a third of the voxels is dark."""
    random = np.random.default_rng(seed)
    energy = 1000 * 100 ** random.random(count)
    peak = depth + 0.4 * np.log(energy / 1000) + random.normal(0, 0.3, count)
    layers = np.exp(-0.5 * ((np.arange(CELLS[0]) - peak[:, None]) / 1.5) ** 2)
    place = np.arange(CELLS[1]) - 2.0
    around = np.exp(-(place[:, None] ** 2 + place**2) / 2)
    shares = layers[:, :, None, None] * around * random.gamma(5, 0.2, (count, *CELLS))
    shares *= random.random((count, *CELLS)) > 1 / 3
    total = energy * random.normal(0.9, 0.08, count) / shares.sum(axis=(1, 2, 3))
    return Showers(energy, (total[:, None, None, None] * shares).reshape(count, -1))


def compare(true: Showers, generated: Showers) -> ShowerQuality:
    return comparison.compare_sources(true, generated, geometry(), CONFIG, classifiers=ALL)


@pytest.fixture(scope="module")
def equal() -> ShowerQuality:
    return compare(make_showers(1), make_showers(2))


@pytest.fixture(scope="module")
def deeper() -> ShowerQuality:
    return compare(make_showers(1), make_showers(2, depth=2.0))


@pytest.mark.slow
def test_equal_sources_cannot_be_told_apart(equal: ShowerQuality) -> None:
    for name in ALL:
        score = equal.auc[name]
        assert abs(score.value - 0.5) < 4 * score.error, name
        assert len(score.aucs) == 2 and score.test_showers == 120
    assert abs(equal.frechet.value) < 4 * equal.frechet.error
    assert abs(equal.kernel.value) < 4 * equal.kernel.error
    assert all(pair.value < 0.05 for pair in equal.separation.values())


@pytest.mark.slow
def test_a_deeper_shower_is_recognised(equal: ShowerQuality, deeper: ShowerQuality) -> None:
    for name in ALL:
        assert deeper.auc[name].value > 0.8, name
        assert deeper.auc[name].value > 0.5 + 5 * deeper.auc[name].error
    assert deeper.frechet.value > 5 * deeper.frechet.error
    assert deeper.kernel.value > 3 * deeper.kernel.error
    assert deeper.separation["separation/layers"].value > 3 * equal.separation["separation/layers"].value


@pytest.mark.slow
def test_correlations_are_those_of_layers(equal: ShowerQuality) -> None:
    true, generated = equal.correlations
    assert true.shape == (6, 6) and np.allclose(np.diag(true), 1)
    assert np.abs(true - generated).max() < 0.2
    assert true[0, 5] < 0 < true[0, 1]  # a deep shower has little energy in front


def test_the_spread_of_seeds_is_an_error(equal: ShowerQuality) -> None:
    score = equal.auc[comparison.FEATURES]
    assert score.spread == pytest.approx(abs(score.aucs[0] - score.aucs[1]) / np.sqrt(2))
    assert score.error >= max(score.spread, score.statistical_error)


def test_at_most_the_number_of_showers_of_the_settings_is_used() -> None:
    config = QualityConfig(showers=100, seeds=0)
    quality = comparison.compare_sources(make_showers(1), make_showers(2), geometry(), config)
    assert quality.showers == 100 and quality.auc == {}
    assert quality.separation["separation/response"].true.sum() == 100


def test_frechet_distance_of_normal_distributions() -> None:
    """Between normal distributions it is the shift squared plus the squared difference of standard deviations."""
    random = np.random.default_rng(3)
    first, second = random.normal(0, 1, (20_000, 2)), random.normal(0.5, 2, (20_000, 2))
    largest = np.abs(first).max(axis=0)
    expected = float(((0.5 / largest) ** 2 + (1 / largest) ** 2).sum())
    distance = frechet_distance(first, second)
    assert distance.value == pytest.approx(expected, abs=4 * distance.error)
    assert distance.error < 0.1 * expected


def test_the_kernel_distance_sees_more_than_means_and_covariances() -> None:
    random = np.random.default_rng(4)
    normal, uniform = random.normal(0, 1, (10_000, 1)), random.choice([-1.0, 1.0], (10_000, 1))
    distance = kernel_distance(uniform, normal)
    assert distance.value > 3 * distance.error
    assert abs(frechet_distance(uniform, normal).value) < 0.01


@pytest.mark.slow
def test_the_same_seeds_give_the_same_score() -> None:
    config = QualityConfig(seeds=1, epochs=2)
    pair = make_showers(1, count=100), make_showers(2, count=100)
    scores = [comparison.compare_sources(*pair, geometry(), config).auc["voxels"].aucs for _ in range(2)]
    assert scores[0] == scores[1]
