"""High-level features of showers, as the CaloChallenge defines them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew.recipes.fastsim.geometry import Floats, Geometry

PIECE = 1000
"""Showers that are in memory as double precision at the same time."""


class Showers(NamedTuple):
    """Showers of one source."""

    energy: NDArray[np.floating]
    """Incident energies (showers), MeV."""
    voxels: NDArray[np.floating]
    """Energies of voxels (showers, voxels), MeV."""


class ShowerFeatures(NamedTuple):
    """Features of showers, one row per shower and one column per layer."""

    layer_energy: Floats
    """MeV."""
    centre_x: Floats
    """Energy-weighted mean of x, in units of the geometry (mm). 0 in an empty layer."""
    centre_y: Floats
    width_x: Floats
    """Energy-weighted standard deviation of x."""
    width_y: Floats
    lit_voxels: Floats
    """Number of voxels with energy."""

    @property
    def total(self) -> Floats:
        """Energy of each shower, MeV."""
        return np.asarray(self.layer_energy.sum(axis=1))


def shower_features(voxels: NDArray[np.floating], geometry: Geometry) -> ShowerFeatures:
    """Compute the features of showers.

    Args:
        voxels: Energies in MeV, (showers, voxels).
        geometry: The calorimeter.

    Example:
        >>> import numpy as np
        >>> from clew.recipes.fastsim.geometry import GeometryConfig
        >>> shower = np.zeros((1, 6480))
        >>> shower[0, 0] = 5.0
        >>> features = shower_features(shower, GeometryConfig().load())
        >>> float(features.total[0]), float(features.lit_voxels.sum())
        (5.0, 1.0)
    """
    parts = [_features(voxels[first : first + PIECE], geometry) for first in range(0, max(len(voxels), 1), PIECE)]
    return ShowerFeatures(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _features(voxels: NDArray[np.floating], geometry: Geometry) -> ShowerFeatures:
    energy = geometry.layer_sums(voxels)
    divisor = np.where(energy > 0, energy, 1.0)
    positions = [layer.positions() for layer in geometry.layers]
    moments: list[tuple[Floats, Floats]] = []
    for axis in (0, 1):
        place = np.concatenate([position[axis] for position in positions])
        mean = geometry.layer_sums(voxels * place) / divisor
        square = geometry.layer_sums(voxels * place**2) / divisor
        moments.append((mean, np.sqrt(np.maximum(square - mean**2, 0.0))))
    (centre_x, width_x), (centre_y, width_y) = moments
    lit = geometry.layer_sums((voxels > 0).astype(np.float64))
    return ShowerFeatures(energy, centre_x, centre_y, width_x, width_y, lit)
