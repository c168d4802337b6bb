"""Pairs of hits that pass cuts, for all events at once. Memory does not grow with the number of rejected pairs.

The event is part of the sort key, so the partners of a hit are one window of one sorted array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from clew.errors import DataError
from clew.recipes.tracking.geometry import TURN, Bools, Floats, HitCoordinates, Ints

BLOCK = 1 << 20
"""Candidates that are tested at once; they take about 50 MB."""
MAX_COORDINATE = 1e5
"""Largest coordinate in mm. A larger one would overlap with the next event in the sort key."""
CANDIDATES_PER_PAIR = 50
"""Largest number of candidates of an event, per allowed pair. With more the window is too wide and takes minutes."""


@dataclass(frozen=True)
class PairCut:
    """A window in u, another condition, and the largest number of pairs in one event."""

    window: float
    accept: Callable[[Ints, Ints], Bools]
    """The other condition: takes row numbers and hit numbers, returns which pairs pass."""
    settings: tuple[str, str]
    """Names of the settings of the window and of `accept`, for error messages."""
    max_per_event: int
    max_setting: str
    item: str
    """Name of what is built, for error messages."""


def pairs_between(hits: HitCoordinates, link: tuple[int, int], cut: PairCut) -> Ints:
    """Hit numbers (pairs, 2), inner and outer, of all pairs between two stations. Rows of `cut.accept` are inner hits.

    Raises:
        DataError: An event has more than `cut.max_per_event` pairs. The message names the cut that rejects the fewest.
    """
    inner = np.flatnonzero(hits.station == link[0])
    by_hit = replace(cut, accept=lambda row, hit: cut.accept(inner[row], hit))
    row, hit = pairs_around(hits, hits.event[inner], hits.u[inner], link[1], by_hit)
    return np.stack([inner[row], hit], axis=1)


def pairs_around(hits: HitCoordinates, event: Ints, centre: Floats, station: int, cut: PairCut) -> tuple[Ints, Ints]:
    """All pairs (row, hit) of a row and a hit of a station in the window around the row.

    Args:
        hits: All hits.
        event: The event of each row.
        centre: Centre of the window in u of each row.
        station: Station of the hits.
        cut: The window and the other condition.

    Raises:
        DataError: An event has more than `cut.max_per_event` pairs.
    """
    outer = np.flatnonzero(hits.station == station)
    first, last, partners = _windows(hits, event, centre, outer, cut.window)
    counts = np.maximum(last - first, 0)
    tested = np.bincount(event, weights=counts, minlength=len(hits.event_number)).astype(np.float64)
    if len(tested) and tested.max() > CANDIDATES_PER_PAIR * cut.max_per_event:
        _raise_too_many(hits, event, outer, tested, int(tested.argmax()), 0.0, cut)
    rows, partner_hits, pairs_in_event = [], [], np.zeros(len(hits.event_number), dtype=np.int64)
    for block in row_blocks(counts):
        row, place = expand_ranges(first[block], last[block])
        row, hit = row + block.start, partners[place]
        accepted = cut.accept(row, hit)
        rows.append(row[accepted])
        partner_hits.append(hit[accepted])
        pairs_in_event += np.bincount(event[rows[-1]], minlength=len(pairs_in_event))
        if pairs_in_event.max(initial=0) > cut.max_per_event:
            _raise_too_many(hits, event, outer, tested, int(pairs_in_event.argmax()), float(accepted.mean()), cut)
    empty = np.empty(0, dtype=np.int64)
    return np.concatenate([empty, *rows]), np.concatenate([empty, *partner_hits])


def _windows(hits: HitCoordinates, event: Ints, centre: Floats, outer: Ints, window: float) -> tuple[Ints, Ints, Ints]:
    """First and last position of the partners of each row in a sorted array of outer hits, and that array.

    If u is an angle, hits near -pi and pi are entered twice, the second time shifted by a full turn.
    """
    u = hits.u[outer]
    if hits.period:
        low, high = outer[u < window - np.pi], outer[u > np.pi - window]
        outer = np.concatenate([outer, low, high])
        u = np.concatenate([u, hits.u[low] + TURN, hits.u[high] - TURN])
        stride = 16.0
    else:
        u = np.clip(u, -MAX_COORDINATE, MAX_COORDINATE)
        centre, stride = np.clip(centre, -MAX_COORDINATE, MAX_COORDINATE), 4 * MAX_COORDINATE + 4 * window
    key = hits.event[outer] * stride + u
    order = np.argsort(
        key, kind="stable"
    )  # stable: ghosts have equal phi, and their order must not depend on other events
    key = key[order]
    centre = event * stride + centre
    first = np.searchsorted(key, centre - window, side="right")
    last = np.searchsorted(key, centre + window, side="left")
    return first, last, outer[order]


def _raise_too_many(
    hits: HitCoordinates, event: Ints, outer: Ints, tested: Floats, index: int, passed: float, cut: PairCut
) -> NoReturn:
    """Raise the error, with the name of the cut that accepts more."""
    all_pairs = int((event == index).sum()) * int((hits.event[outer] == index).sum())
    loosest = cut.settings[0] if tested[index] / max(all_pairs, 1) >= passed else cut.settings[1]
    size = int((hits.event == index).sum())
    raise DataError(
        f"event {hits.event_number[index]}: {size:,} hits give more than {cut.max_per_event:,} {cut.item}; "
        f"tighten {loosest}, which accepts most, or raise {cut.max_setting}"
    )


def row_blocks(counts: Ints) -> Iterator[slice]:
    """Slices of consecutive rows with about BLOCK positions in total, each with at least one row."""
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        done = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, done + BLOCK, side="right")), start + 1)
        yield slice(start, stop)
        start = stop


def expand_ranges(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """All pairs (row, place) with first[row] <= place < last[row]."""
    counts = np.maximum(last - first, 0)
    rows = np.repeat(np.arange(len(first)), counts)
    ends = np.cumsum(counts)
    places = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts) + np.repeat(first, counts)
    return rows, places
