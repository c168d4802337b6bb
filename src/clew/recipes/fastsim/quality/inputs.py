"""Inputs of classifiers and distances, as the CaloChallenge defines them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from clew.recipes.fastsim.features import ShowerFeatures
from clew.recipes.fastsim.geometry import Floats

EMPTY_LAYER = 1e-8
"""Energy that is added to layers before the logarithm, MeV."""
LENGTH = 100.0
"""Unit of centres and widths, mm."""
SMALLEST_SHARE = 1e-6
"""Share of the incident energy that is added to voxels before the logarithm."""

VoxelInputs = Callable[[NDArray[np.floating], NDArray[np.floating]], NDArray[np.float32]]


def feature_inputs(energy: NDArray[np.floating], features: ShowerFeatures) -> Floats:
    """Return the incident energy, the energy of each layer (as logarithms), and centres and widths of layers.

    Args:
        energy: Incident energies (showers), MeV.
        features: Features of the same showers.

    Returns:
        (showers, 1 + 5 layers).
    """
    lengths = [features.centre_x, features.centre_y, features.width_x, features.width_y]
    return np.concatenate(
        [
            np.log10(np.asarray(energy, np.float64))[:, None],
            np.log10(features.layer_energy + EMPTY_LAYER),
            *(each / LENGTH for each in lengths),
        ],
        axis=1,
    )


def voxel_inputs(energy: NDArray[np.floating], voxels: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return the logarithm of the incident energy, and the share of it in each voxel: (showers, 1 + voxels)."""
    return _with_energy(energy, np.asarray(voxels, np.float32) / np.asarray(energy, np.float32)[:, None])


def log_voxel_inputs(energy: NDArray[np.floating], voxels: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return the same with logarithms of the shares: sensitive to voxels of low energy, and not of the challenge."""
    shares = np.asarray(voxels, np.float32) / np.asarray(energy, np.float32)[:, None]
    return _with_energy(energy, np.log10(shares + SMALLEST_SHARE))


def _with_energy(energy: NDArray[np.floating], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.concatenate([np.log10(np.asarray(energy, np.float32))[:, None], inputs], axis=1)
