"""The figures of merit that every track finder is judged by, as tallies: exact under any split of the events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from clew import Section, Table, metrics
from clew.errors import DataError
from clew.recipes.tracking import matching, plots
from clew.recipes.tracking.geometry import Bools, Detector, Floats


class Judging(Section):
    """Which true tracks are to be found, and what counts as found in plots. What is not given is the detector's."""

    pt_min: Annotated[float, Field(ge=0)] | None = None
    """GeV, of the largest pT at a track's hits; where events carry no momenta, of pT as measured from the hits. ACTS
    events: 1, others: 0."""
    hits_min: Annotated[int, Field(ge=1)] | None = None
    """Hits a track must have. ACTS events: 6, others: 1."""
    shown: Literal["exact", "50", "75"] | None = None
    """By which match plots and event displays tell found from missed: the exact hit set, or a majority in percent. ACTS
    events: 75, others: exact."""


EVERY_TRACK = Judging()
ABOVE_1_GEV = Judging(pt_min=1.0, hits_min=6, shown="75")
"""What is usual for silicon trackers, and the default for ACTS events."""


def tallies(
    samples: Table,
    match: matching.Match,
    detector: Detector,
    wanted: Judging = EVERY_TRACK,
    own: Mapping[str, metrics.Metric] | None = None,
) -> dict[str, metrics.Metric]:
    """Everything about tracks; `own` figures come before plots.

    Exact hit sets: `efficiency`, `purity`, `ghost_rate`, `event_ratio`, `track_f1`. By majority: `efficiency_50`,
    `purity_50`, `efficiency_75`, `purity_75`, and `duplicate_rate`, found tracks beyond the first that match a true one
    at 50%. By hits: `trackml_score`. Against pT, angle and multiplicity: plots. Efficiencies are of `wanted` tracks;
    purities count a match with any true track.
    """
    chosen, weights = choose(samples, match, detector, wanted), samples.weights
    mask = chosen.mask
    of_true, of_found = weights[match.true_event], weights[match.found_event]
    missed = np.bincount(match.true_event[mask & ~match.true_found], minlength=len(samples))
    figures: dict[str, metrics.Metric] = {
        "efficiency": metrics.Ratio.of(match.true_found[mask], of_true[mask]),
        "purity": metrics.Ratio.of(match.found_true, of_found),
        "ghost_rate": metrics.Ratio.of(~match.found_true, of_found),
        "event_ratio": metrics.Ratio.of(missed == 0, weights),
        "track_f1": _f1(match, mask, of_true, of_found),
        "trackml_score": _score(samples, match),
    }
    for row, share in enumerate(matching.SHARES):
        figures[f"efficiency_{share * 100:.0f}"] = metrics.Ratio.of(match.true_share[row][mask], of_true[mask])
        figures[f"purity_{share * 100:.0f}"] = metrics.Ratio.of(match.found_share[row], of_found)
    figures["duplicate_rate"] = _duplicates(match, of_true, of_found)
    return {**figures, **(own or {}), **plots.draw(samples, match, chosen, detector, wanted.shown or "exact")}


def choose(samples: Table, match: matching.Match, detector: Detector, wanted: Judging) -> plots.Wanted:
    """Which true tracks are wanted.

    Raises:
        DataError: by momentum, and nothing tells it of these events.
    """
    enough, pt_min = match.true_hits >= (wanted.hits_min or 1), wanted.pt_min or 0.0
    if "px" in samples:
        told = matching.momenta(samples, match.true_of_hit)
    elif not detector.planar:
        told = matching.kinematics(samples, match.true_of_hit, detector.field)
    elif pt_min > 0:
        raise DataError(f"judging.pt_min is {pt_min:g} GeV, but these events have no momenta")
    else:
        return plots.Wanted(enough, None)
    return plots.Wanted(enough & (told[0] >= pt_min), told)


def _f1(match: matching.Match, mask: Bools, of_true: Floats, of_found: Floats) -> metrics.F1:
    found, false = of_true[match.true_found & mask].sum(), of_found[~match.found_true].sum()
    return metrics.F1(float(found), float(false), float(of_true[~match.true_found & mask].sum()))


def _duplicates(match: matching.Match, of_true: Floats, of_found: Floats) -> metrics.Ratio:
    twice = of_found[match.found_share[0]].sum() - of_true[match.true_share[0]].sum()
    return metrics.Ratio(float(twice), float(of_found.sum()), float((of_found**2).sum()))


def _score(samples: Table, match: matching.Match) -> metrics.Ratio:
    """The share of the weight of true hits that is in the right track; weights of hits from `hit_weight`, or 1."""
    weight = samples.weights[samples.ragged("track").events]
    if "hit_weight" in samples:
        weight = weight * samples.ragged("hit_weight").values
    true = match.true_of_hit >= 0
    return metrics.Ratio.of(match.scored[true], weight[true])
