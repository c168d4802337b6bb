"""Metrics of jets and of missing transverse momentum: predicted against true particles."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clew import Table, metrics
from clew.recipes.particleflow.columns import NONE, TARGETS
from clew.recipes.particleflow.metric_types import DifferenceHistogram, ResolutionHistogram, ResponseHistogram
from clew.recipes.particleflow.targets import TRACKER_ETA

if TYPE_CHECKING:
    from clew.recipes.particleflow.metrics import ParticleFlowMetricsConfig

Floats = NDArray[np.float64]
RATIO_EDGES = np.linspace(0, 2, 81)
MISSING_PT_EDGES = np.linspace(-200, 200, 801)
"""Edges of the difference of a component of the missing momentum, GeV."""
REGION_TITLES = {"": "", "inside/": ", inside the tracker", "outside/": ", outside the tracker"}
"""The ends of titles, by the prefix of the names of metrics of a region."""
PARTICLE_COLUMNS = ("pid", "pt", "eta", "phi", "energy")


def make_jet_metrics(
    samples: Table, truth: dict[str, Floats], objects: Table, settings: ParticleFlowMetricsConfig
) -> dict[str, metrics.Metric]:
    """Return response and resolution of the missing pT and, with fastjet, of jets, and the efficiency of jets."""
    offsets, weights = samples.ragged(TARGETS).offsets, samples.weights
    predicted = {name: objects.ragged(name).values.astype(np.float64) for name in PARTICLE_COLUMNS}
    events = [slice(int(a), int(b)) for a, b in itertools.pairwise(offsets)]
    true_sum, predicted_sum = (
        np.array([momentum_sum(particles, event) for event in events]).reshape(-1, 2)
        for particles in (truth, predicted)
    )
    ratio = np.hypot(*predicted_sum.T) / np.maximum(np.hypot(*true_sum.T), 1e-6)
    difference = (predicted_sum - true_sum).ravel()
    results: dict[str, metrics.Metric] = {
        "met_response": ResponseHistogram.of(
            ratio, RATIO_EDGES, axis="predicted / true", what="missing pT", weights=weights
        ),
        "met_resolution": DifferenceHistogram.of(
            difference,
            MISSING_PT_EDGES,
            axis="predicted - true [GeV]",
            what="components of the missing pT",
            weights=np.repeat(weights, 2),
        ),
    }
    if settings.jets and importlib.util.find_spec("fastjet"):
        results |= _jet_metrics(truth, predicted, events, weights, settings)
    return results


def momentum_sum(particles: dict[str, Floats], event: slice) -> tuple[float, float]:
    """Return the sums of px and py of the particles of an event in GeV; minus the missing momentum."""
    pt, phi = (particles[name][event] * (particles["pid"][event] != NONE) for name in ("pt", "phi"))
    return float((pt * np.cos(phi)).sum()), float((pt * np.sin(phi)).sum())


def cluster_jets(particles: dict[str, Floats], event: slice, radius: float, min_pt: float) -> Floats:
    """Return pT, eta, phi (jets, 3) of anti-kt jets above `min_pt`, hardest first. Particles are taken as massless."""
    import fastjet

    present = particles["pid"][event] != NONE
    pt, eta, phi = (particles[name][event][present] for name in ("pt", "eta", "phi"))
    pt, eta = np.clip(pt, 1e-6, 1e5), np.clip(eta, -8, 8)
    inputs = [
        fastjet.PseudoJet(*four)
        for four in np.stack([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta), pt * np.cosh(eta)], 1).tolist()
    ]
    _print_banner_to_devnull()
    sequence = fastjet.ClusterSequence(inputs, fastjet.JetDefinition(fastjet.antikt_algorithm, radius))
    jets = fastjet.sorted_by_pt(sequence.inclusive_jets(min_pt))
    return np.array([(jet.pt(), jet.eta(), jet.phi()) for jet in jets], dtype=np.float64).reshape(-1, 3)


def _jet_metrics(
    truth: dict[str, Floats],
    predicted: dict[str, Floats],
    events: list[slice],
    weights: Floats,
    settings: ParticleFlowMetricsConfig,
) -> dict[str, metrics.Metric]:
    ratios: list[Any] = []
    etas: list[Any] = []
    for event in events:
        true_jets = cluster_jets(truth, event, settings.jet_radius, settings.jet_pt)
        predicted_jets = cluster_jets(predicted, event, settings.jet_radius, settings.jet_pt / 4)
        ratios.append(match_jets(true_jets, predicted_jets, settings.jet_match))
        etas.append(true_jets[:, 1])
    ratio, eta = (np.concatenate([np.zeros(0), *each]) for each in (ratios, etas))
    weight = np.repeat(weights, [len(each) for each in ratios])
    results: dict[str, metrics.Metric] = {}
    for prefix, inside in region_masks(eta).items():
        matched = np.isfinite(ratio) & inside
        what = f"pT of jets above {settings.jet_pt:g} GeV{REGION_TITLES[prefix]}"
        histograms = {"jet_response": ResponseHistogram, "jet_resolution": ResolutionHistogram}
        for name, kind in histograms.items():
            results[f"{prefix}{name}"] = kind.of(
                ratio[matched], RATIO_EDGES, axis="predicted / true", what=what, weights=weight[matched]
            )
        results[f"{prefix}jet_efficiency"] = metrics.Ratio.of(np.isfinite(ratio[inside]), weight[inside])
    return results


def region_masks(eta: Floats) -> dict[str, NDArray[np.bool_]]:
    """Return masks of everything and of both regions, by the prefix of the names of their metrics."""
    inside = np.abs(eta) < TRACKER_ETA
    return {"": np.ones(len(eta), dtype=bool), "inside/": inside, "outside/": ~inside}


def match_jets(true: Floats, predicted: Floats, max_distance: float) -> Floats:
    """Return the pT of the nearest predicted jet over that of each true jet, or NaN if none is within `max_distance`.

    True jets are matched from the hardest to the softest. Each predicted jet is used once.
    """
    ratio, free = np.full(len(true), np.nan), np.ones(len(predicted), dtype=bool)
    for place, (pt, eta, phi) in enumerate(true):
        delta_phi = np.abs((predicted[:, 2] - phi + np.pi) % (2 * np.pi) - np.pi)
        distance = np.where(free, np.hypot(predicted[:, 1] - eta, delta_phi), np.inf)
        if len(predicted) and distance.min() < max_distance:
            best = int(distance.argmin())
            ratio[place], free[best] = predicted[best, 0] / pt, False
    return ratio


@functools.cache
def _print_banner_to_devnull() -> None:
    """Redirect to /dev/null the banner that fastjet prints at its first clustering, bypassing sys.stdout."""
    import fastjet

    sys.stdout.flush()
    stdout = os.dup(1)
    with open(os.devnull, "w") as devnull:  # noqa: PTH123
        os.dup2(devnull.fileno(), 1)
    try:
        one = [fastjet.PseudoJet(1.0, 0.0, 0.0, 1.0)]
        fastjet.ClusterSequence(one, fastjet.JetDefinition(fastjet.antikt_algorithm, 0.4))
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
