"""Efficiency and purity against what tracks and events are like, as tallies that draw themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew import Table, metrics
from clew.recipes.tracking.geometry import Bools, Detector, Floats
from clew.recipes.tracking.matching import Match


class Wanted(NamedTuple):
    """Which true tracks are to be found, and pT (GeV) and polar angle (degrees) of all where something tells."""

    mask: Bools
    kinematics: tuple[Floats, Floats] | None


class Bins(NamedTuple):
    """Edges of the bins of each plot."""

    pt: Sequence[float]
    theta: Sequence[float]
    eta: Sequence[float]
    tracks: Sequence[float]


BINS = {
    "bes3": Bins(
        (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5),
        range(20, 161, 10),
        np.arange(-1.8, 1.9, 0.3).round(1).tolist(),
        np.arange(0.5, 9.0).tolist(),
    ),
    "bmn": Bins(
        (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5),
        range(0, 41, 4),
        np.arange(1.0, 4.1, 0.3).round(1).tolist(),
        np.arange(0.5, 41.0, 4).tolist(),
    ),
    "acts": Bins(
        (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 20.0),
        range(10, 171, 10),
        np.arange(-2.4, 2.5, 0.3).round(1).tolist(),
        np.arange(0.5, 141.0, 14).tolist(),
    ),
    "trackml": Bins(
        (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
        range(10, 171, 10),
        np.arange(-2.4, 2.5, 0.4).round(1).tolist(),
        np.arange(0.5, 81.0, 8).tolist(),
    ),
}


def draw(samples: Table, match: Match, wanted: Wanted, detector: Detector, by: str) -> dict[str, metrics.Metric]:
    """Against pT, polar angle, pseudorapidity and multiplicity; `by` is what counts as found (`Match.shown`)."""
    match, bins, mask = match.shown(by), BINS[detector.name], wanted.mask
    many = np.bincount(match.true_event[mask], minlength=len(samples))
    against: dict[str, tuple[NDArray[np.generic], Sequence[float], str]] = {}
    if wanted.kinematics is not None:
        pt, theta = wanted.kinematics
        with np.errstate(divide="ignore"):
            eta = -np.log(np.tan(np.radians(theta) / 2))
        against["pt"] = pt, bins.pt, "pT [GeV]" if "px" in samples else "pT from the hits [GeV]"
        against["theta"] = theta, bins.theta, "polar angle [degrees]"
        against["eta"] = eta, bins.eta, "pseudorapidity"
    tracks = "true tracks in the event"
    against["multiplicity"] = many[match.true_event], bins.tracks, tracks
    label, weights = "" if by == "exact" else f" at {by}%", samples.weights
    plots: dict[str, metrics.Metric] = {}
    for name, (x, edges, axis) in against.items():
        found, weight = match.true_found[mask], weights[match.true_event[mask]]
        drawn = metrics.Binned.of(x[mask], found, edges, axis=axis, label=f"efficiency{label}", weights=weight)
        plots[f"efficiency_{name}"] = drawn
    x, weight = many[match.found_event], weights[match.found_event]
    drawn = metrics.Binned.of(x, match.found_true, bins.tracks, axis=tracks, label=f"purity{label}", weights=weight)
    plots["purity_multiplicity"] = drawn
    return plots
