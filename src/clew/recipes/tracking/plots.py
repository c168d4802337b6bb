"""Metrics that are plots: efficiency and purity against pT, angle, pseudorapidity and multiplicity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew import Table, metrics
from clew.recipes.tracking.geometry import Bools, Detector, Floats
from clew.recipes.tracking.matching import Match


class TrackSelection(NamedTuple):
    """Which true tracks count, and pT (GeV) and polar angle (degrees) of all true tracks if they are known."""

    mask: Bools
    kinematics: tuple[Floats, Floats] | None


class PlotBins(NamedTuple):
    """Bin edges of each plot."""

    pt: Sequence[float]
    theta: Sequence[float]
    eta: Sequence[float]
    tracks: Sequence[float]


BINS = {
    "bes3": PlotBins(
        (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5),
        range(20, 161, 10),
        np.arange(-1.8, 1.9, 0.3).round(1).tolist(),
        np.arange(0.5, 9.0).tolist(),
    ),
    "bmn": PlotBins(
        (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5),
        range(0, 41, 4),
        np.arange(1.0, 4.1, 0.3).round(1).tolist(),
        np.arange(0.5, 41.0, 4).tolist(),
    ),
    "acts": PlotBins(
        (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 20.0),
        range(10, 171, 10),
        np.arange(-2.4, 2.5, 0.3).round(1).tolist(),
        np.arange(0.5, 141.0, 14).tolist(),
    ),
    "trackml": PlotBins(
        (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
        range(10, 171, 10),
        np.arange(-2.4, 2.5, 0.4).round(1).tolist(),
        np.arange(0.5, 81.0, 8).tolist(),
    ),
}


def make_plots(
    samples: Table, match: Match, selection: TrackSelection, detector: Detector, criterion: str
) -> dict[str, metrics.Metric]:
    """Efficiency and purity in bins.

    Args:
        samples: The samples, for event weights.
        match: The comparison of found and true tracks.
        selection: The true tracks that count.
        detector: The detector, which selects the bins.
        criterion: When a track counts as found, see `Match.by_criterion`.
    """
    match, bins, mask = match.by_criterion(criterion), BINS[detector.name], selection.mask
    multiplicity = np.bincount(match.true_event[mask], minlength=len(samples))
    variables: dict[str, tuple[NDArray[np.generic], Sequence[float], str]] = {}
    if selection.kinematics is not None:
        pt, theta = selection.kinematics
        with np.errstate(divide="ignore"):
            eta = -np.log(np.tan(np.radians(theta) / 2))
        variables["pt"] = pt, bins.pt, "pT [GeV]" if "px" in samples else "pT from the hits [GeV]"
        variables["theta"] = theta, bins.theta, "polar angle [degrees]"
        variables["eta"] = eta, bins.eta, "pseudorapidity"
    tracks = "true tracks in the event"
    variables["multiplicity"] = multiplicity[match.true_event], bins.tracks, tracks
    label, weights = "" if criterion == "exact" else f" at {criterion}%", samples.weights
    plots: dict[str, metrics.Metric] = {}
    for name, (x, edges, axis) in variables.items():
        matched, weight = match.true_found[mask], weights[match.true_event[mask]]
        binned = metrics.Binned.of(x[mask], matched, edges, axis=axis, label=f"efficiency{label}", weights=weight)
        plots[f"efficiency_{name}"] = binned
    x, weight = multiplicity[match.found_event], weights[match.found_event]
    binned = metrics.Binned.of(x, match.found_true, bins.tracks, axis=tracks, label=f"purity{label}", weights=weight)
    plots["purity_multiplicity"] = binned
    return plots
