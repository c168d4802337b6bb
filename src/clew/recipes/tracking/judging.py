"""The figures of merit that every track finder is judged by, as tallies: exact under any split of the events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clew import Section, Table, tally
from clew.errors import DataError
from clew.recipes.tracking import matching
from clew.recipes.tracking.geometry import Detector, Floats


class Judging(Section):
    """Which true tracks are to be found, and what counts as found in plots."""

    pt_min: Annotated[float, Field(ge=0)] = 0.0
    """GeV, of the largest pT at a track's hits; where events carry no momenta, of pT as measured from the hits."""
    hits_min: Annotated[int, Field(ge=1)] = 1
    shown: Literal["exact", "50", "75"] = "exact"
    """By which match plots and event displays tell found from missed: the exact hit set, or a majority in percent."""


EVERY_TRACK = Judging()
ABOVE_1_GEV = Judging(pt_min=1.0, hits_min=6, shown="75")
"""What is usual for silicon trackers, and the default for ACTS events."""


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
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0),
        range(10, 171, 10),
        np.arange(-2.4, 2.5, 0.3).round(1).tolist(),
        np.arange(0.5, 201.0, 20).tolist(),
    ),
    "trackml": Bins(
        (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
        range(10, 171, 10),
        np.arange(-2.4, 2.5, 0.4).round(1).tolist(),
        np.arange(0.5, 81.0, 8).tolist(),
    ),
}


def tallies(
    samples: Table,
    match: matching.Match,
    detector: Detector,
    wanted: Judging = EVERY_TRACK,
    own: Mapping[str, tally.Tally] | None = None,
) -> dict[str, tally.Tally]:
    """Everything about tracks; `own` figures come before plots.

    Exact hit sets: `efficiency`, `purity`, `ghost_rate`, `event_ratio`, `track_f1`. By majority: `efficiency_50`,
    `purity_50`, `efficiency_75`, `purity_75`, and `duplicate_rate`, found tracks beyond the first that match a true one
    at 50%. By hits: `trackml_score`. Against pT, angle and multiplicity: plots. Efficiencies are of `wanted` tracks;
    purities count a match with any true track.
    """
    kinds = _kinematics(samples, match, detector)
    chosen = _chosen(match, kinds, wanted)
    weights = samples.weights
    of_true, of_found = weights[match.true_event], weights[match.found_event]
    missed = np.bincount(match.true_event[chosen & ~match.true_found], minlength=len(samples))
    figures: dict[str, tally.Tally] = {
        "efficiency": tally.Ratio.of(match.true_found[chosen], of_true[chosen]),
        "purity": tally.Ratio.of(match.found_true, of_found),
        "ghost_rate": tally.Ratio.of(~match.found_true, of_found),
        "event_ratio": tally.Ratio.of(missed == 0, weights),
        "track_f1": _f1(match, chosen, of_true, of_found),
        "trackml_score": _score(samples, match),
    }
    for row, share in enumerate(matching.SHARES):
        figures[f"efficiency_{share * 100:.0f}"] = tally.Ratio.of(match.true_share[row][chosen], of_true[chosen])
        figures[f"purity_{share * 100:.0f}"] = tally.Ratio.of(match.found_share[row], of_found)
    figures["duplicate_rate"] = _duplicates(match, of_true, of_found)
    return {**figures, **(own or {}), **_plots(samples, match.shown(wanted.shown), detector, chosen, kinds)}


def _kinematics(samples: Table, match: matching.Match, detector: Detector) -> tuple[Floats, Floats] | None:
    """pT and polar angle of true tracks; None where nothing tells."""
    if "px" in samples:
        return matching.momenta(samples, match.true_of_hit)
    return None if detector.planar else matching.kinematics(samples, match.true_of_hit, detector.field)


def _chosen(match: matching.Match, kinds: tuple[Floats, Floats] | None, wanted: Judging) -> matching.Bools:
    if kinds is None and wanted.pt_min > 0:
        raise DataError(f"judging.pt_min is {wanted.pt_min:g} GeV, but these events have no momenta")
    enough = match.true_hits >= wanted.hits_min
    return enough if kinds is None else enough & (kinds[0] >= wanted.pt_min)


def _f1(match: matching.Match, chosen: matching.Bools, of_true: Floats, of_found: Floats) -> tally.F1:
    found, false = of_true[match.true_found & chosen].sum(), of_found[~match.found_true].sum()
    return tally.F1(float(found), float(false), float(of_true[~match.true_found & chosen].sum()))


def _duplicates(match: matching.Match, of_true: Floats, of_found: Floats) -> tally.Ratio:
    twice = of_found[match.found_share[0]].sum() - of_true[match.true_share[0]].sum()
    return tally.Ratio(float(twice), float(of_found.sum()))


def _score(samples: Table, match: matching.Match) -> tally.Ratio:
    """The share of the weight of true hits that is in the right track; weights of hits from `hit_weight`, or 1."""
    weight = samples.weights[samples.ragged("track").events]
    if "hit_weight" in samples:
        weight = weight * samples.ragged("hit_weight").values
    true = match.true_of_hit >= 0
    return tally.Ratio.of(match.scored[true], weight[true])


def _plots(
    samples: Table,
    match: matching.Match,
    detector: Detector,
    chosen: matching.Bools,
    kinds: tuple[Floats, Floats] | None,
) -> dict[str, tally.Tally]:
    bins, weights = BINS[detector.name], samples.weights
    tracks = np.bincount(match.true_event[chosen], minlength=len(samples))
    plots: dict[str, tally.Tally] = {}

    def efficiency(name: str, x: NDArray[np.generic], edges: Sequence[float], axis: str) -> None:
        passed, weight = match.true_found[chosen], weights[match.true_event[chosen]]
        drawn = tally.Binned.of(x[chosen], passed, edges, axis=axis, label="efficiency", weights=weight)
        plots[f"efficiency_{name}"] = drawn

    if kinds is not None:
        pt, theta = kinds
        efficiency("pt", pt, bins.pt, "pT [GeV]" if "px" in samples else "pT from the hits [GeV]")
        efficiency("theta", theta, bins.theta, "polar angle [degrees]")
        with np.errstate(divide="ignore"):
            efficiency("eta", -np.log(np.tan(np.radians(theta) / 2)), bins.eta, "pseudorapidity")
    axis, of_found = "true tracks in the event", tracks[match.found_event]
    efficiency("multiplicity", tracks[match.true_event], bins.tracks, axis)
    plots["purity_multiplicity"] = tally.Binned.of(
        of_found, match.found_true, bins.tracks, axis=axis, label="purity", weights=weights[match.found_event]
    )
    return plots
