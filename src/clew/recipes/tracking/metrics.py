"""Metrics of found tracks. They are sums and counts: the result does not depend on how events are split in batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from clew import Section, Table, metrics
from clew.errors import DataError
from clew.recipes.tracking import matching, plots
from clew.recipes.tracking.geometry import Bools, Detector, Floats


class TrackingMetricsConfig(Section):
    """Which true tracks count, and when a track counts as found in plots. Defaults depend on the detector."""

    pt_min: Annotated[float, Field(ge=0)] | None = None
    """Smallest pT of a true track in GeV: the largest at its hits, or fitted to the hits if events have no momenta.
    Default: 1 for ACTS events, 0 for others."""
    hits_min: Annotated[int, Field(ge=1)] | None = None
    """Smallest number of hits of a true track. Default: 6 for ACTS events, 1 for others."""
    plot_match: Literal["exact", "50", "75"] | None = None
    """When a track counts as found in plots and event displays: same hits (`exact`), or a majority of the hits in
    percent. Default: 75 for ACTS events, exact for others."""


ALL_TRACKS = TrackingMetricsConfig()
ABOVE_1_GEV = TrackingMetricsConfig(pt_min=1.0, hits_min=6, plot_match="75")
"""Common choice for silicon trackers, and the default for ACTS events."""


def make_metrics(
    samples: Table,
    match: matching.Match,
    detector: Detector,
    config: TrackingMetricsConfig = ALL_TRACKS,
    details: Mapping[str, metrics.Metric] | None = None,
) -> dict[str, metrics.Metric]:
    """All metrics of tracks.

    Exact hit sets: `efficiency`, `purity`, `ghost_rate`, `event_ratio`, `track_f1`. By majority: `efficiency_50`,
    `purity_50`, `efficiency_75`, `purity_75`, and `duplicate_rate`, the share of found tracks that match, at 50%, a
    true track which another found track matches too. By hits: `trackml_score`. Plots: against pT, angle and
    multiplicity.
    Efficiencies count the true tracks that `config` selects. Purities count a match with any true track.

    Args:
        samples: The samples.
        match: The comparison of found and true tracks.
        detector: The detector.
        config: Which true tracks count.
        details: More metrics, placed before the plots.
    """
    selection, weights = select_tracks(samples, match, detector, config), samples.weights
    mask = selection.mask
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
    for row, share in enumerate(matching.MAJORITIES):
        figures[f"efficiency_{share * 100:.0f}"] = metrics.Ratio.of(match.true_majority[row][mask], of_true[mask])
        figures[f"purity_{share * 100:.0f}"] = metrics.Ratio.of(match.found_majority[row], of_found)
    figures["duplicate_rate"] = _duplicates(match, of_true, of_found)
    return {
        **figures,
        **(details or {}),
        **plots.make_plots(samples, match, selection, detector, config.plot_match or "exact"),
    }


def select_tracks(
    samples: Table, match: matching.Match, detector: Detector, config: TrackingMetricsConfig
) -> plots.TrackSelection:
    """The true tracks that `config` selects.

    Raises:
        DataError: Tracks are selected by pT, and the events have no momenta and no cylinders to fit them with.
    """
    selected, pt_min = match.true_hits >= (config.hits_min or 1), config.pt_min or 0.0
    if "px" in samples:
        kinematics = matching.true_kinematics(samples, match.true_of_hit)
    elif not detector.planar:
        kinematics = matching.fitted_kinematics(samples, match.true_of_hit, detector.field)
    elif pt_min > 0:
        raise DataError(f"metrics.pt_min is {pt_min:g} GeV, but these events have no momenta")
    else:
        return plots.TrackSelection(selected, None)
    return plots.TrackSelection(selected & (kinematics[0] >= pt_min), kinematics)


def _f1(match: matching.Match, mask: Bools, of_true: Floats, of_found: Floats) -> metrics.F1:
    matched, false = of_true[match.true_found & mask].sum(), of_found[~match.found_true].sum()
    return metrics.F1(float(matched), float(false), float(of_true[~match.true_found & mask].sum()))


def _duplicates(match: matching.Match, of_true: Floats, of_found: Floats) -> metrics.Ratio:
    duplicates = of_found[match.found_majority[0]].sum() - of_true[match.true_majority[0]].sum()
    return metrics.Ratio(float(duplicates), float(of_found.sum()), float((of_found**2).sum()))


def _score(samples: Table, match: matching.Match) -> metrics.Ratio:
    """The TrackML score: the weighted share of true hits in the right track. Weights are `hit_weight`, or 1."""
    weight = samples.weights[samples.ragged("track").events]
    if "hit_weight" in samples:
        weight = weight * samples.ragged("hit_weight").values
    true = match.true_of_hit >= 0
    return metrics.Ratio.of(match.scored_hits[true], weight[true])
