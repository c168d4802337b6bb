"""Metrics of generated showers: histograms of true and generated showers, and how far they are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from clew import figure
from clew.metrics import Metric
from clew.recipes.fastsim.features import ShowerFeatures, Showers, shower_features
from clew.recipes.fastsim.geometry import Floats, Geometry

RESPONSE_EDGES = np.linspace(0.5, 1.5, 51)
VOXEL_EDGES = np.linspace(-2, 4, 49)
LIT_EDGES = np.linspace(0, 1, 51)
WIDTH_EDGES = np.linspace(0, 20, 41)


@dataclass(frozen=True)
class HistogramPair(Metric):
    """Histograms of one quantity for true and generated showers. The value is their separation power.

    The separation power is half the sum of (p - q)^2 / (p + q) over bins of the normalised histograms: 0 for equal
    ones, 1 for histograms that do not overlap.

    Args:
        edges: Edges of the bins.
        true: Sum of weights per bin for true showers.
        generated: The same for generated showers.
        axis: Name of the quantity with its unit.

    Example:
        >>> pair = HistogramPair.of([0.5, 1.5], [0.5, 0.6], [0, 1, 2], axis="x")
        >>> round(pair.value, 3)
        0.333
    """

    edges: Floats = field(metadata={"label": True})
    true: Floats
    generated: Floats
    axis: str

    @classmethod
    def of(cls, true: ArrayLike, generated: ArrayLike, edges: ArrayLike, *, axis: str) -> HistogramPair:
        """Fill both histograms. Values outside `edges` are counted in the first or last bin."""
        bins = np.asarray(edges, dtype=np.float64)
        counts = [
            np.histogram(np.clip(np.asarray(each, float), bins[0], bins[-1]), bins)[0] for each in (true, generated)
        ]
        return cls(bins, counts[0].astype(np.float64), counts[1].astype(np.float64), axis)

    @property
    def value(self) -> float:
        if not self.true.sum() or not self.generated.sum():
            return math.nan
        p, q = self.true / self.true.sum(), self.generated / self.generated.sum()
        both = np.where(p + q > 0, p + q, 1.0)
        return float(0.5 * ((p - q) ** 2 / both).sum())

    @property
    def error(self) -> float:
        """The statistical error for independent entries, with the value that two equal sources would give."""
        counts = [float(each.sum()) for each in (self.true, self.generated)]
        if not all(counts):
            return math.nan
        p, q = self.true / counts[0], self.generated / counts[1]
        both = np.where(p + q > 0, p + q, 1.0)
        slopes = (p - q) * (p + 3 * q) / both**2 / 2, (q - p) * (q + 3 * p) / both**2 / 2
        variance = [
            float((slope**2 * share).sum() - (slope * share).sum() ** 2) / count
            for slope, share, count in zip(slopes, (p, q), counts, strict=True)
        ]
        equal = (np.count_nonzero(p + q) - 1) / 4 * (1 / counts[0] + 1 / counts[1])
        return math.sqrt(sum(variance) + equal**2)

    def figure(self, title: str) -> figure.Figure:
        shapes = [each / max(float(each.sum()), 1.0) for each in (self.true, self.generated)]
        return figure.figure(
            [
                figure.steps(self.edges, shapes[0], "true", colour=6, fill="tozeroy", opacity=0.35),
                figure.steps(self.edges, shapes[1], "generated", colour=1),
            ],
            title=f"{self.axis.partition(' [')[0].capitalize()}: separation {self.value:.2g} ± {self.error:.1g}",
            x=self.axis,
            y="share",
        )


def compare_showers(true: Showers, generated: Showers, geometry: Geometry) -> dict[str, HistogramPair]:
    """Compare generated with true showers.

    Args:
        true: True showers.
        generated: Generated showers, with the same distribution of incident energies.
        geometry: The calorimeter.

    Returns:
        Histograms of the response, the share of each layer, the energies of lit voxels, the share of lit voxels, and
        the widths of layers.
    """
    sources = true, generated
    features = [shower_features(each.voxels, geometry) for each in sources]
    layers = np.arange(len(geometry.layers) + 1, dtype=np.float64) - 0.5
    lit = [each.lit_voxels.sum(axis=1) / geometry.voxels for each in features]
    response = [made.total / each.energy for made, each in zip(features, sources, strict=True)]
    spectra = [np.log10(np.maximum(each.voxels[each.voxels > 0], 1e-6)) for each in sources]
    widths = [each.width_x[each.layer_energy > 0] for each in features]
    return {
        "separation/response": HistogramPair.of(
            response[0], response[1], RESPONSE_EDGES, axis="shower energy / incident energy"
        ),
        "separation/layers": HistogramPair(
            layers, _layer_shares(features[0]), _layer_shares(features[1]), "layer (share of the energy)"
        ),
        "separation/voxels": HistogramPair.of(spectra[0], spectra[1], VOXEL_EDGES, axis="log10 of voxel energy [MeV]"),
        "separation/lit": HistogramPair.of(lit[0], lit[1], LIT_EDGES, axis="share of lit voxels"),
        "separation/width": HistogramPair.of(widths[0], widths[1], WIDTH_EDGES, axis="width of layers in x [mm]"),
    }


def _layer_shares(features: ShowerFeatures) -> Floats:
    """Sum over showers of each layer's share of the energy."""
    total = np.where(features.total > 0, features.total, 1.0)
    return np.asarray((features.layer_energy / total[:, None]).sum(axis=0))
