"""A classical baseline for the networks: the combinatorial Kalman filter of ACTS on the same events.

Its input is that of a network: positions of hits and their modules, in tables of `simulate_acts` or read from its
files, without truth. The chain is the standard one of ACTS: space points of the pixels, triplet seeds on a grid, track
parameters of each seed, the combinatorial Kalman filter through all volumes in both directions, greedy removal of
ambiguities. It knows the geometry, material, field and resolutions exactly, which is possible only in a simulation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clew import Ragged, Table
from clew.recipes.tracking import acts_filter, matching, metrics, trackml
from clew.recipes.tracking.geometry import Bools, Detector, Ints
from clew.recipes.tracking.metrics import ABOVE_1_GEV, TrackingMetricsConfig

MIN_HITS = 3
"""Smallest number of hits in the barrel of a track that counts there."""


class FilterTracks(NamedTuple):
    """Found tracks, and the CPU seconds from space points to tracks.

    `tracks` has one row per event with the columns `found_track` (numbered from 0) and `hit` (a hit of that track).
    """

    tracks: Table
    seconds: float


def measure_filter(
    events: Table, *, config: TrackingMetricsConfig = ABOVE_1_GEV, barrel: bool = False
) -> dict[str, float]:
    """Metrics of the Kalman filter on these events: those of the recipes with errors, and `events_per_second`.

    Speed is in events per second of CPU time in one thread, without the transfer of hits and tracks between clew and
    ACTS.

    Args:
        events: ACTS events.
        config: Which true tracks count.
        barrel: Evaluate with hits of the barrel only, as for the recipes: tracks with MIN_HITS of them, particles with
            `config.hits_min`. The filter itself still uses the whole detector.
    """
    tracks, seconds = find_tracks(events)
    track, hit = track_hits(events, tracks)
    hits = trackml.hit_table(events)
    if barrel:
        inside = trackml.barrel_stations(events) >= 0
        hits, (track, hit) = hits.select("x", inside), _inside(track, hit, inside)
    filter_metrics = metrics.make_metrics(hits, matching.match_lists(hits, track, hit), Detector(name="acts"), config)
    figures: dict[str, float] = {"events": float(len(events))}
    for name, metric in filter_metrics.items():
        if metric.scalar:
            figures[name], figures[f"{name}_error"] = metric.value, metric.error
    return {**figures, "events_per_second": len(events) / max(seconds, 1e-9)}


def track_hits(events: Table, tracks: Table) -> tuple[Ints, Ints]:
    """Found tracks and their hits, both numbered through the table. A hit that a track has twice counts once."""
    track = tracks.ragged("found_track")
    hit = tracks.ragged("hit").values + events.ragged("x").offsets[track.events]
    rows = np.unique(np.stack([track.events, track.values, hit], axis=1), axis=0)
    _, number = np.unique(rows[:, :2], axis=0, return_inverse=True)
    return number.ravel(), rows[:, 2]


def _inside(track: Ints, hit: Ints, mask: Bools) -> tuple[Ints, Ints]:
    """The pairs of track and hit inside the mask, for tracks with at least MIN_HITS such hits, numbered again."""
    track, hit = track[mask[hit]], hit[mask[hit]]
    long_enough = np.bincount(track)[track] >= MIN_HITS
    _, number = np.unique(track[long_enough], return_inverse=True)
    return number.ravel(), (np.cumsum(mask) - 1)[hit[long_enough]]


def find_tracks(events: Table, *, seeds_per_point: int = acts_filter.SEEDS_PER_POINT) -> FilterTracks:
    """Run the filter.

    Args:
        events: ACTS events.
        seeds_per_point: Largest number of seeds with the same middle point. In crowded events more seeds find more
            particles, and take more time.

    Raises:
        RecipeError: pyacts is not installed.
        DataError: A hit is on no module of the GenericDetector.
    """
    lists, seconds = acts_filter.find_tracks(events, seeds_per_point) if len(events) else ([], 0.0)
    hits = [hit for event in lists for track in event for hit in track]
    like = Ragged.from_lengths(np.array(hits, np.int64), [sum(map(len, event)) for event in lists])
    number = [number for event in lists for number, track in enumerate(event) for _ in track]
    return FilterTracks(Table({"found_track": like.share(np.array(number, np.int64)), "hit": like}), seconds)
