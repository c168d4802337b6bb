"""Means over showers of one source: against energy, depth and radius. Each mean has its statistical error."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew.recipes.fastsim.features import ShowerFeatures, Showers
from clew.recipes.fastsim.geometry import CylinderLayer, Floats, Geometry

ENERGY_BINS = 10
"""Bins of the logarithm of the incident energy."""


class ShowerProfile(NamedTuple):
    """Values with errors, one for each place."""

    place: Floats
    value: Floats
    error: Floats


def energy_edges(true: Showers, generated: Showers) -> Floats:
    """Return edges of bins of the incident energy, MeV, that contain both sources."""
    energies = np.concatenate([true.energy, generated.energy]).astype(np.float64)
    low, high = np.log10(energies.min()) - 1e-6, np.log10(energies.max()) + 1e-6
    return np.logspace(low, high, ENERGY_BINS + 1)


def response(showers: Showers, features: ShowerFeatures, edges: Floats) -> tuple[ShowerProfile, ShowerProfile]:
    """Return the mean response (shower energy / incident energy) and the resolution against the energy in GeV.

    The resolution is the standard deviation of the response over its mean. Bins with less than 5 showers are empty.
    """
    energy = np.asarray(showers.energy, np.float64)
    ratio, bins = features.total / energy, np.digitize(energy, edges) - 1
    rows: list[tuple[float, ...]] = []
    for each in range(len(edges) - 1):
        values = ratio[bins == each]
        if len(values) < 5:
            rows.append((np.nan,) * 4)
            continue
        mean, deviation = values.mean(), values.std(ddof=1)
        width = deviation / mean if mean > 0 else np.nan
        rows.append((mean, deviation / len(values) ** 0.5, width, width / (2 * (len(values) - 1)) ** 0.5))
    columns = np.array(rows).T
    place = np.sqrt(edges[1:] * edges[:-1]) / 1000
    return ShowerProfile(place, columns[0], columns[1]), ShowerProfile(place, columns[2], columns[3])


def per_layer(values: Floats, *, mask: NDArray[np.bool_] | None = None) -> ShowerProfile:
    """Return the mean of a quantity (showers, layers) in each layer, over the showers where `mask` is true."""
    used = np.ones(values.shape, dtype=bool) if mask is None else mask
    count = np.maximum(used.sum(axis=0), 1)
    mean = np.where(used, values, 0).sum(axis=0) / count
    variance = np.where(used, (values - mean) ** 2, 0).sum(axis=0) / np.maximum(count - 1, 1)
    return ShowerProfile(np.arange(values.shape[1], dtype=np.float64), mean, np.sqrt(variance / count))


def longitudinal(showers: Showers, features: ShowerFeatures) -> ShowerProfile:
    """Return the mean share of the incident energy in each layer."""
    return per_layer(features.layer_energy / np.asarray(showers.energy, np.float64)[:, None])


def lateral(showers: Showers, geometry: Geometry) -> ShowerProfile:
    """Return the mean share of the incident energy against the distance from the axis."""
    radius = np.round(np.concatenate([_radii(layer) for layer in geometry.layers]), 3)
    places, ring = np.unique(radius, return_inverse=True)
    share = np.zeros((len(showers.energy), len(places)))
    for number in range(len(places)):
        share[:, number] = showers.voxels[:, ring == number].sum(axis=1) / showers.energy
    return ShowerProfile(places, *per_layer(share)[1:])


def _radii(layer: object) -> Floats:
    """Return the distance of each voxel of a layer from the axis."""
    if isinstance(layer, CylinderLayer):
        edges = np.array(layer.radial_edges)
        return np.tile((edges[1:] + edges[:-1]) / 2, layer.angular_bins)
    x, y = layer.positions()  # type: ignore[attr-defined]
    return np.asarray(np.hypot(x, y))
