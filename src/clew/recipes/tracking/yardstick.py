"""A classical yardstick beside the networks: ACTS' combinatorial Kalman filter on the very same events.

It sees what a network sees: positions of hits and the modules they are on, in tables of `simulate_acts` or read from
its files; no truth. The chain is ACTS' standard one: space points of the pixels, triplet seeds on a grid, track
parameters from each seed, the combinatorial Kalman filter through all volumes in both directions, greedy removal of
ambiguities. It knows the geometry, material, field and resolutions exactly, as only a simulation can.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from clew import Ragged, Table
from clew.recipes.tracking import acts_filter, majority


class Found(NamedTuple):
    """Tracks as `majority.judge` takes them, and the CPU seconds ACTS took, from space points to tracks."""

    tracks: Table
    seconds: float


def measure(events: Table, *, pt_min: float = 1.0, hits_min: int = 6) -> dict[str, float]:
    """Figures of the Kalman filter on these events: those of `majority.judge` with their errors, and events/s.

    Speed is events a second of CPU time in one thread, without the hand-over of hits and tracks between clew and ACTS.
    """
    found = find(events)
    figures: dict[str, float] = {"events": float(len(events))}
    for name, ratio in majority.judge(events, found.tracks, pt_min=pt_min, hits_min=hits_min).items():
        figures[name], figures[f"{name}_error"] = ratio.value, ratio.error
    return {**figures, "events_per_second": len(events) / max(found.seconds, 1e-9)}


def rows(figures: Mapping[str, float]) -> list[tuple[str, str]]:
    """Those figures as lines of a table: a name and a value with its error."""
    told = [name for name in figures if not name.endswith("_error")]
    return [(name.replace("_", " "), _value(figures[name], figures.get(f"{name}_error"))) for name in told]


def _value(value: float, error: float | None) -> str:
    return f"{value:,.1f}" if error is None else f"{value:.4f} ± {error:.4f}"


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
