"""How far generated showers are from true ones: the figures of merit of the CaloChallenge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clew.errors import DataError
from clew.recipes.fastsim.features import ShowerFeatures, Showers, shower_features
from clew.recipes.fastsim.geometry import Floats, Geometry
from clew.recipes.fastsim.metrics import HistogramPair, compare_showers
from clew.recipes.fastsim.quality import inputs
from clew.recipes.fastsim.quality.classifier import ClassifierScore, classifier_score
from clew.recipes.fastsim.quality.config import QualityConfig
from clew.recipes.fastsim.quality.distances import Distance, frechet_distance, kernel_distance

FEATURES, VOXELS, LOG_VOXELS = "features", "voxels", "log_voxels"
"""Inputs of classifiers: layer energies, centres and widths; shares of voxels; their logarithms."""

MIN_SHOWERS = 20
"""Two in each of 10 groups, and some to train, choose and measure a classifier."""


@dataclass(frozen=True)
class ShowerQuality:
    """The result of a comparison.

    Args:
        showers: Number of showers of each source.
        auc: Scores of classifiers, by their inputs.
        frechet: Frechet distance of the features.
        kernel: Kernel distance of the features.
        separation: Histograms of both sources with their separation power, by name.
        correlations: Correlations between layer energies of true and of generated showers, (layers, layers) each.
    """

    showers: int
    auc: dict[str, ClassifierScore]
    frechet: Distance
    kernel: Distance
    separation: dict[str, HistogramPair]
    correlations: tuple[Floats, Floats]


def compare_sources(
    true: Showers,
    generated: Showers,
    geometry: Geometry,
    config: QualityConfig | None = None,
    *,
    classifiers: Sequence[str] = (FEATURES, VOXELS),
    device: str = "",
) -> ShowerQuality:
    """Compare generated with true showers.

    Both sources should have the same distribution of incident energies: a classifier would use a difference.

    Args:
        true: True showers.
        generated: Generated showers. Of each source, the first `config.showers` are used, and equally many of both.
        geometry: The calorimeter.
        config: Number of showers, seeds and epochs.
        classifiers: Inputs of classifiers: FEATURES, VOXELS, LOG_VOXELS.
        device: Device of torch for the classifiers. Empty: a GPU if there is one.

    Raises:
        DataError: There are too few showers.

    Example:
        >>> import numpy as np
        >>> from clew.recipes.fastsim.geometry import GeometryConfig
        >>> from clew.recipes.fastsim.features import Showers
        >>> random, geometry = np.random.default_rng(1), GeometryConfig(kind="grid", cells=(4, 3, 3)).load()
        >>> energy = random.uniform(1e3, 1e4, 200)
        >>> showers = Showers(energy, random.gamma(2.0, energy[:, None] / 100, (200, 36)))
        >>> brighter = Showers(energy, showers.voxels * 3)
        >>> quality = compare_sources(showers, brighter, geometry, QualityConfig(seeds=1, epochs=5))
        >>> quality.auc["features"].value > 0.9, quality.frechet.value > 0
        (True, True)
    """
    config = config or QualityConfig()
    count = min(config.showers, len(true.energy), len(generated.energy))
    if count < MIN_SHOWERS:
        raise DataError(f"a comparison needs {MIN_SHOWERS} showers of each source, not {count}")
    sources = [Showers(each.energy[:count], each.voxels[:count]) for each in (true, generated)]
    features = [shower_features(each.voxels, geometry) for each in sources]
    matrices = [inputs.feature_inputs(each.energy, made) for each, made in zip(sources, features, strict=True)]
    scores: dict[str, ClassifierScore] = {}
    for name in classifiers if config.seeds else ():
        pair = matrices if name == FEATURES else [_VOXEL_INPUTS[name](*each) for each in sources]
        scores[name] = classifier_score(pair[0], pair[1], config, device=device)
    return ShowerQuality(
        count,
        scores,
        frechet_distance(matrices[0], matrices[1]),
        kernel_distance(matrices[0], matrices[1]),
        compare_showers(sources[0], sources[1], geometry),
        (layer_correlations(sources[0].energy, features[0]), layer_correlations(sources[1].energy, features[1])),
    )


_VOXEL_INPUTS: dict[str, inputs.VoxelInputs] = {VOXELS: inputs.voxel_inputs, LOG_VOXELS: inputs.log_voxel_inputs}


def layer_correlations(energy: NDArray[np.floating], features: ShowerFeatures) -> Floats:
    """Return Pearson's correlation between the shares of the incident energy in two layers, (layers, layers).

    A layer without any energy has no correlation with others: 0.
    """
    shares = features.layer_energy / np.asarray(energy, np.float64)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        matrix = np.atleast_2d(np.nan_to_num(np.corrcoef(shares, rowvar=False)))
    np.fill_diagonal(matrix, 1.0)
    return matrix
