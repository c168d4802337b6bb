"""The comparison of two sources as metrics and pictures for a report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.figure import Figure
from clew.metrics import Metric
from clew.recipes.fastsim.display import shower_picture
from clew.recipes.fastsim.features import ShowerFeatures, Showers, shower_features
from clew.recipes.fastsim.geometry import Geometry, GridLayer
from clew.recipes.fastsim.quality import figures, profiles
from clew.recipes.fastsim.quality.comparison import ShowerQuality, compare_sources
from clew.recipes.fastsim.quality.config import QualityConfig
from clew.recipes.fastsim.quality.layer_histograms import layer_histograms

SHOWN_SHOWERS = 3
"""Showers of each source that are drawn."""
SHOWN_DEPTHS = (0.15, 0.4, 0.75)
"""Depths of the layers whose histograms are drawn, as shares of the calorimeter."""

Sources = tuple[Showers, Showers]
Features = tuple[ShowerFeatures, ShowerFeatures]


@dataclass(frozen=True)
class Measurement(Metric):
    """A number that was measured with all showers at once.

    Args:
        number: The value.
        uncertainty: Its error; NaN if there is none.
    """

    number: float
    uncertainty: float

    @property
    def value(self) -> float:
        return self.number

    @property
    def error(self) -> float:
        return self.uncertainty


def quality_report(
    true: Showers, generated: Showers, geometry: Geometry, config: QualityConfig
) -> tuple[dict[str, Metric], dict[str, Figure]]:
    """Compare generated with true showers.

    Args:
        true: True showers.
        generated: Generated showers, with the same distribution of incident energies.
        geometry: The calorimeter.
        config: How much work to do.

    Returns:
        Metrics by name, and pictures by name.
    """
    quality = compare_sources(true, generated, geometry, config)
    sources = (
        Showers(true.energy[: quality.showers], true.voxels[: quality.showers]),
        Showers(generated.energy[: quality.showers], generated.voxels[: quality.showers]),
    )
    features = shower_features(sources[0].voxels, geometry), shower_features(sources[1].voxels, geometry)
    drawn = {
        **_classifier_figures(quality),
        **_profile_figures(sources, features, geometry),
        **_layer_figures(sources, features, geometry),
        **figures.correlation_figures(quality.correlations, quality.showers, "correlations"),
    }
    return _metrics(quality), drawn


def _metrics(quality: ShowerQuality) -> dict[str, Metric]:
    result: dict[str, Metric] = {
        f"auc/{name}": Measurement(score.value, score.error) for name, score in quality.auc.items()
    }
    for name, distance in {"frechet": quality.frechet, "kernel": quality.kernel}.items():
        result[f"distance/{name}_x1000"] = Measurement(1000 * distance.value, 1000 * distance.error)
    difference = quality.correlations[0] - quality.correlations[1]
    upper = difference[np.triu_indices(len(difference), 1)]
    result["correlation/largest_difference"] = Measurement(
        float(np.abs(upper).max()) if len(upper) else 0.0, (2 / max(quality.showers, 1)) ** 0.5
    )
    result["comparison/showers_per_source"] = Measurement(quality.showers, float("nan"))
    return {**result, **quality.separation}


def _classifier_figures(quality: ShowerQuality) -> dict[str, Figure]:
    result: dict[str, Figure] = {}
    for name, score in quality.auc.items():
        title = f"classifier on {name}: AUC {score.value:.3f} ± {score.error:.3f}, {len(score.aucs)} seeds"
        plot = score.roc.figure(title)
        axes = {"xaxis": {**plot["layout"]["xaxis"], "title": {"text": "generated showers taken for true"}}}
        axes["yaxis"] = {**plot["layout"]["yaxis"], "title": {"text": "true showers recognised"}}
        axes["xaxis"] |= {"type": "linear", "range": [0, 1], "dtick": 0.2, "exponentformat": "none"}
        plot["data"][0]["name"] = "all seeds together"
        result[f"roc_{name}"] = {**plot, "layout": {**plot["layout"], **axes, "meta": {"task": "classifiers"}}}
    return result


def _profile_figures(sources: Sources, features: Features, geometry: Geometry) -> dict[str, Figure]:
    edges = profiles.energy_edges(*sources)
    first, second = (profiles.response(*each, edges) for each in zip(sources, features, strict=True))
    depth = [profiles.longitudinal(*each) for each in zip(sources, features, strict=True)]
    radius = [profiles.lateral(each, geometry) for each in sources]
    unit = "cells" if isinstance(geometry.layers[0], GridLayer) else "mm"
    lit = [each.layer_energy > 0 for each in features]
    widths = [profiles.per_layer(each.width_x, mask=mask) for each, mask in zip(features, lit, strict=True)]
    spreads = [profiles.per_layer(np.abs(each.centre_x), mask=mask) for each, mask in zip(features, lit, strict=True)]
    voxels = np.array([layer.voxels for layer in geometry.layers])
    sparsity = [profiles.per_layer(1 - each.lit_voxels / voxels) for each in features]
    log, gev, task = {"type": "log"}, "incident energy [GeV]", "profiles"
    share = "share of the incident energy"
    return {
        "response": figures.profile_figure(
            (first[0], second[0]), task=task, title="Response", x=gev, y="shower energy / incident energy", xaxis=log
        ),
        "resolution": figures.profile_figure(
            (first[1], second[1]), task=task, title="Resolution", x=gev, y="deviation / mean", xaxis=log
        ),
        "longitudinal": figures.profile_figure(
            (depth[0], depth[1]), task=task, title="Longitudinal profile", x="layer", y=share
        ),
        "lateral": figures.profile_figure(
            (radius[0], radius[1]), task=task, title="Lateral profile", x=f"radius [{unit}]", y=share, yaxis=log
        ),
        "widths": figures.profile_figure(
            (widths[0], widths[1]), task=task, title="Width of layers in x", x="layer", y=f"mean width [{unit}]"
        ),
        "centres": figures.profile_figure(
            (spreads[0], spreads[1]), task=task, title="Centre of layers in x", x="layer", y=f"mean |centre| [{unit}]"
        ),
        "sparsity": figures.profile_figure(
            (sparsity[0], sparsity[1]), task=task, title="Sparsity", x="layer", y="share of voxels without energy"
        ),
    }


def _layer_figures(sources: Sources, features: Features, geometry: Geometry) -> dict[str, Figure]:
    """The separation power of all layers, and the histograms of a few."""
    histograms, task = layer_histograms(sources, features, geometry), "layers"
    result = {"layer_separation": figures.separation_figure(histograms, task)}
    shown = dict.fromkeys(int(depth * len(geometry.layers)) for depth in SHOWN_DEPTHS)
    for name, pairs in histograms.items():
        for layer in shown:
            plot = pairs[layer].figure(name)
            result[f"layer_{layer}_{name}"] = {**plot, "layout": {**plot["layout"], "meta": {"task": task}}}
    return result


def shower_pictures(true: Showers, generated: Showers, geometry: Geometry) -> dict[str, Figure]:
    """Draw the first true showers, each beside the generated shower of the nearest energy.

    There are no pictures if the layers of the geometry differ.
    """
    result: dict[str, Figure] = {}
    if geometry.shape is None:
        return result
    for number in range(min(SHOWN_SHOWERS, len(true.energy), len(generated.energy))):
        nearest = int(np.argmin(np.abs(np.log(generated.energy / true.energy[number]))))
        for kind, source, row in (("true", true, number), ("generated", generated, nearest)):
            title = f"{kind} shower of {source.energy[row] / 1000:.3g} GeV"
            result[f"shower_{number}_{kind}"] = shower_picture(source.voxels[row], geometry.shape, title)
    return result
