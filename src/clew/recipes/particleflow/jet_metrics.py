"""Metrics of jets and of missing transverse momentum: predicted against true particles."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    samples: Table,
    truth: dict[str, Floats],
    objects: Table,
    settings: ParticleFlowMetricsConfig,
    true_jets: Sequence[Floats] | None = None,
) -> dict[str, metrics.Metric]:
    """Return response and resolution of the missing pT and, with fastjet, of jets, and the efficiency of jets.

    Args:
        samples: The events.
        truth: Their true particles.
        objects: Their predicted particles.
        settings: The definition of jets.
        true_jets: The result of `cluster_true_jets`, if it is known already.
    """
    offsets, weights = samples.ragged(TARGETS).offsets, samples.weights
    predicted = {name: objects.ragged(name).values.astype(np.float64) for name in PARTICLE_COLUMNS}
    true_sum, predicted_sum = (momentum_sums(particles, offsets) for particles in (truth, predicted))
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
    if true_jets is None:
        true_jets = cluster_true_jets(truth, offsets, settings)
    if true_jets is not None:
        predicted_jets = cluster_jets(predicted, offsets, settings.jet_radius, settings.jet_pt / 4)
        results |= _jet_metrics(true_jets, predicted_jets, weights, settings)
    return results


def cluster_true_jets(
    truth: dict[str, Floats], offsets: NDArray[np.int64], settings: ParticleFlowMetricsConfig
) -> list[Floats] | None:
    """Return the jets of true particles of every event; None if no jets are wanted, or fastjet is not installed."""
    if not settings.jets or not importlib.util.find_spec("fastjet"):
        return None
    return cluster_jets(truth, offsets, settings.jet_radius, settings.jet_pt)


def momentum_sums(particles: dict[str, Floats], offsets: NDArray[np.int64]) -> Floats:
    """Return the sums (events, 2) of px and py of the particles of every event in GeV; minus the missing momentum."""
    pt, phi = (particles[name] * (particles["pid"] != NONE) for name in ("pt", "phi"))
    events, count = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), len(offsets) - 1
    return np.stack([np.bincount(events, pt * wave(phi), minlength=count) for wave in (np.cos, np.sin)], axis=1)


def cluster_jets(
    particles: dict[str, Floats], offsets: NDArray[np.int64], radius: float, min_pt: float
) -> list[Floats]:
    """Return pT, eta, phi (jets, 3) of the anti-kt jets of every event, hardest first. Particles are taken as massless.

    fastjet gets arrays of all events at once: an object per particle would take most of the time.

    Args:
        particles: Columns of the particles of all events.
        offsets: Where the particles of each event start, and the end of the last.
        radius: Radius parameter R.
        min_pt: Minimum pT of a jet, GeV.
    """
    import awkward
    import fastjet

    present = particles["pid"] != NONE
    pt, eta, phi = (particles[name][present] for name in ("pt", "eta", "phi"))
    pt, eta = np.clip(pt, 1e-6, 1e5), np.clip(eta, -8, 8)
    four = {"px": pt * np.cos(phi), "py": pt * np.sin(phi), "pz": pt * np.sinh(eta), "E": pt * np.cosh(eta)}
    lengths = np.diff(np.concatenate([[0], np.cumsum(present)])[offsets])
    _print_banner_to_devnull()
    definition = fastjet.JetDefinition(fastjet.antikt_algorithm, radius)
    events = awkward.unflatten(awkward.zip(four), lengths)
    jets = fastjet.ClusterSequence(events, definition).inclusive_jets(min_pt)
    px, py, pz = (awkward.to_numpy(awkward.flatten(jets[name])) for name in ("px", "py", "pz"))
    jet_pt = np.hypot(px, py)
    columns = np.stack([jet_pt, np.arcsinh(pz / jet_pt), np.arctan2(py, px) % (2 * np.pi)], axis=1)
    bounds = np.cumsum(awkward.to_numpy(awkward.num(jets)))[:-1]
    return [each[np.argsort(-each[:, 0], kind="stable")] for each in np.split(columns, bounds)]


def _jet_metrics(
    true_jets: Sequence[Floats],
    predicted_jets: Sequence[Floats],
    weights: Floats,
    settings: ParticleFlowMetricsConfig,
) -> dict[str, metrics.Metric]:
    pairs = zip(true_jets, predicted_jets, strict=True)
    ratios = [match_jets(true, predicted, settings.jet_match) for true, predicted in pairs]
    etas = [each[:, 1] for each in true_jets]
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
    ratio = np.full(len(true), np.nan)
    if not len(true) or not len(predicted):
        return ratio
    delta_phi = np.abs((predicted[:, 2] - true[:, 2, None] + np.pi) % (2 * np.pi) - np.pi)
    distances = np.hypot(predicted[:, 1] - true[:, 1, None], delta_phi)
    for place, distance in enumerate(distances):
        best = int(distance.argmin())
        if distance[best] < max_distance:
            ratio[place] = predicted[best, 0] / true[place, 0]
            distances[:, best] = np.inf
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
