"""Histograms of quantities of single layers for true and generated showers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clew.recipes.fastsim.features import ShowerFeatures, Showers
from clew.recipes.fastsim.geometry import Floats, Geometry
from clew.recipes.fastsim.metrics import HistogramPair

BINS = 30
QUANTITIES = {
    "energy": "log10 of energy share",
    "centre_x": "centre in x",
    "centre_y": "centre in y",
    "width_x": "width in x",
    "width_y": "width in y",
    "lit": "share of lit voxels",
}
"""Quantities by name, with their axes."""


def layer_histograms(
    sources: tuple[Showers, Showers], features: tuple[ShowerFeatures, ShowerFeatures], geometry: Geometry
) -> dict[str, list[HistogramPair]]:
    """Return histograms of true and generated showers for each of QUANTITIES, one for each layer.

    Edges follow from the true showers: from the smallest to the largest value without 0.5% on either side. Showers
    outside are in the first or last bin. Showers without energy in the layer count only for the share of lit voxels.
    """
    columns = [_columns(each, made, geometry) for each, made in zip(sources, features, strict=True)]
    lit = [made.layer_energy > 0 for made in features]
    result: dict[str, list[HistogramPair]] = {}
    for name, axis in QUANTITIES.items():
        pairs = []
        for layer in range(len(geometry.layers)):
            chosen = [
                each[name][:, layer] if name == "lit" else each[name][:, layer][mask[:, layer]]
                for each, mask in zip(columns, lit, strict=True)
            ]
            pairs.append(HistogramPair.of(chosen[0], chosen[1], _edges(chosen[0]), axis=f"{axis}, layer {layer}"))
        result[name] = pairs
    return result


def _columns(showers: Showers, features: ShowerFeatures, geometry: Geometry) -> dict[str, Floats]:
    share = features.layer_energy / np.asarray(showers.energy, np.float64)[:, None]
    voxels = np.array([layer.voxels for layer in geometry.layers])
    return {
        "energy": np.log10(np.maximum(share, 1e-12)),
        "centre_x": features.centre_x,
        "centre_y": features.centre_y,
        "width_x": features.width_x,
        "width_y": features.width_y,
        "lit": features.lit_voxels / voxels,
    }


def _edges(values: NDArray[np.floating]) -> Floats:
    low, high = np.quantile(values, (0.005, 0.995)) if len(values) else (0.0, 1.0)
    return np.linspace(low, high if high > low else low + 1.0, BINS + 1)
