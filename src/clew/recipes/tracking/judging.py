"""The figures of merit that every track finder is judged by, as tallies: exact under any split of the events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew import Table, tally
from clew.recipes.tracking import matching
from clew.recipes.tracking.geometry import Detector, Floats, Ints


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
    "trackml": Bins(
        (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
        range(10, 171, 10),
        np.arange(-2.4, 2.5, 0.4).round(1).tolist(),
        np.arange(0.5, 81.0, 8).tolist(),
    ),
}


def tallies(
    samples: Table, found: Ints, detector: Detector, own: Mapping[str, tally.Tally] | None = None
) -> dict[str, tally.Tally]:
    """Everything about tracks; `found` is the track each hit was given, -1 for none. `own` figures come before plots.

    Exact hit sets: `efficiency`, `purity`, `ghost_rate`, `event_ratio`, `track_f1`. By majority: `efficiency_50`,
    `purity_50`, `efficiency_75`, `purity_75`. By hits: `trackml_score`. Against pT, angle and multiplicity: plots.
    """
    match, weights = matching.match(samples, found), samples.weights
    of_true, of_found = weights[match.true_event], weights[match.found_event]
    missed = np.bincount(match.true_event[~match.true_found], minlength=len(samples))
    figures: dict[str, tally.Tally] = {
        "efficiency": tally.Ratio.of(match.true_found, of_true),
        "purity": tally.Ratio.of(match.found_true, of_found),
        "ghost_rate": tally.Ratio.of(~match.found_true, of_found),
        "event_ratio": tally.Ratio.of(missed == 0, weights),
        "track_f1": _f1(match, of_true, of_found),
        "trackml_score": _score(samples, match),
    }
    for row, share in enumerate(matching.SHARES):
        figures[f"efficiency_{share * 100:.0f}"] = tally.Ratio.of(match.true_share[row], of_true)
        figures[f"purity_{share * 100:.0f}"] = tally.Ratio.of(match.found_share[row], of_found)
    return {**figures, **(own or {}), **_plots(samples, match, detector)}


def _f1(match: matching.Match, of_true: Floats, of_found: Floats) -> tally.F1:
    found, false = of_true[match.true_found].sum(), of_found[~match.found_true].sum()
    return tally.F1(float(found), float(false), float(of_true[~match.true_found].sum()))


def _score(samples: Table, match: matching.Match) -> tally.Ratio:
    """The share of the weight of true hits that is in the right track; weights of hits from `hit_weight`, or 1."""
    weight = samples.weights[samples.ragged("track").events]
    if "hit_weight" in samples:
        weight = weight * samples.ragged("hit_weight").values
    true = match.true_of_hit >= 0
    return tally.Ratio.of(match.scored[true], weight[true])


def _plots(samples: Table, match: matching.Match, detector: Detector) -> dict[str, tally.Tally]:
    bins, weights = BINS[detector.name], samples.weights
    tracks = np.bincount(match.true_event, minlength=len(samples))
    plots: dict[str, tally.Tally] = {}

    def draw(name: str, x: NDArray[np.generic], edges: Sequence[float], axis: str, *, purity: bool = False) -> None:
        passed, event = (match.found_true, match.found_event) if purity else (match.true_found, match.true_event)
        what = "purity" if purity else "efficiency"
        plots[f"{what}_{name}"] = tally.Binned.of(x, passed, edges, axis=axis, label=what, weights=weights[event])

    if "px" in samples or not detector.planar:
        true = "px" in samples
        pt, theta = (
            matching.momenta(samples, match.true_of_hit)
            if true
            else matching.kinematics(samples, match.true_of_hit, detector.field)
        )
        draw("pt", pt, bins.pt, "pT [GeV]" if true else "pT from the hits [GeV]")
        draw("theta", theta, bins.theta, "polar angle [degrees]")
        with np.errstate(divide="ignore"):
            draw("eta", -np.log(np.tan(np.radians(theta) / 2)), bins.eta, "pseudorapidity")
    draw("multiplicity", tracks[match.true_event], bins.tracks, "true tracks in the event")
    draw("multiplicity", tracks[match.found_event], bins.tracks, "true tracks in the event", purity=True)
    return plots
