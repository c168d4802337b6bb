"""A classical yardstick beside the networks: ACTS' combinatorial Kalman filter on the very same events.

It sees what a network sees: positions of hits and the modules they are on, in tables of `simulate_acts` or read from
its files; no truth. The chain is ACTS' standard one: space points of the pixels, triplet seeds on a grid, track
parameters from each seed, the combinatorial Kalman filter through all volumes in both directions, greedy removal of
ambiguities. It knows the geometry, material, field and resolutions exactly, as only a simulation can.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clew import Ragged, Table
from clew.recipes.tracking import acts_filter, matching, metrics, trackml
from clew.recipes.tracking.geometry import Bools, Detector, Ints
from clew.recipes.tracking.metrics import ABOVE_1_GEV, Judging

SHORTEST = 3
"""Hits in the barrel that a track must have to be counted there."""


class Found(NamedTuple):
    """Pairs `found` (a track's number, from 0 in each event) and `hit` (one of its hits in the event); CPU seconds that
    ACTS took, from space points to tracks."""

    tracks: Table
    seconds: float


def measure(events: Table, *, wanted: Judging = ABOVE_1_GEV, barrel: bool = False) -> dict[str, float]:
    """Figures of the Kalman filter on these events, those of every recipe with their errors, and events/s.

    With `barrel` the filter still uses the whole detector, but is judged as the recipes are, by hits in the barrel
    alone: tracks with SHORTEST of them, particles with `wanted.hits_min`. Speed is events a second of CPU time in one
    thread, without the hand-over of hits and tracks between clew and ACTS.
    """
    tracks, seconds = find(events)
    found, hit = _pairs(events, tracks)
    hits = trackml.hits(events)
    if barrel:
        inside = trackml.stations(events) >= 0
        hits, (found, hit) = hits.select("x", inside), _inside(found, hit, inside)
    judged = metrics.tallies(hits, matching.match_lists(hits, found, hit), Detector(name="acts"), wanted)
    figures: dict[str, float] = {"events": float(len(events))}
    for name, each in judged.items():
        if each.scalar:
            figures[name], figures[f"{name}_error"] = each.value, each.error
    return {**figures, "events_per_second": len(events) / max(seconds, 1e-9)}


def _pairs(events: Table, tracks: Table) -> tuple[Ints, Ints]:
    """Tracks and their hits, both counted through the table; a hit named twice by a track counts once."""
    found = tracks.ragged("found")
    hit = tracks.ragged("hit").values + events.ragged("x").offsets[found.events]
    rows = np.unique(np.stack([found.events, found.values, hit], axis=1), axis=0)
    _, number = np.unique(rows[:, :2], axis=0, return_inverse=True)
    return number.ravel(), rows[:, 2]


def _inside(found: Ints, hit: Ints, mask: Bools) -> tuple[Ints, Ints]:
    """The pairs whose hits are kept, of tracks that keep SHORTEST of them, counted anew."""
    found, hit = found[mask[hit]], hit[mask[hit]]
    long = np.bincount(found)[found] >= SHORTEST
    _, number = np.unique(found[long], return_inverse=True)
    return number.ravel(), (np.cumsum(mask) - 1)[hit[long]]


def find(events: Table) -> Found:
    """Run the filter.

    Raises:
        RecipeError: pyacts is not installed.
        DataError: a hit is on no module of the GenericDetector.
    """
    lists, seconds = acts_filter.run(events) if len(events) else ([], 0.0)
    hits = [hit for event in lists for track in event for hit in track]
    like = Ragged.from_lengths(np.array(hits, np.int64), [sum(map(len, event)) for event in lists])
    number = [number for event in lists for number, track in enumerate(event) for _ in track]
    return Found(Table({"found": like.share(np.array(number, np.int64)), "hit": like}), seconds)
