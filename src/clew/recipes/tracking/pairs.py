"""Pairs of hits that pass cuts, over all events at once, in memory that does not grow with what the cuts reject.

An event's number is part of the sort key, so that the partners of a hit are one window of one sorted array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clew.errors import DataError
from clew.recipes.tracking.geometry import TURN, Ints, Places

Bools = NDArray[np.bool_]

BLOCK = 1 << 20
"""Candidates looked at in one go: about 50 MB."""
PATIENCE = 50
"""Candidates an event may have for each link it may have: beyond, the window is wrong and would take minutes."""


@dataclass(frozen=True)
class Cut:
    """A window in u, what else a pair must pass, and how many may pass in one event."""

    window: float
    accept: Callable[[Ints, Ints], Bools]
    """From the numbers of inner and outer hits."""
    names: tuple[str, str]
    """The settings behind the window and behind `accept`."""
    most: int
    most_name: str
    what: str
    """What the pairs are called."""


def between(hits: Places, inner_station: int, outer_station: int, cut: Cut) -> Ints:
    """Hit numbers (pairs, 2) of all pairs, inner and outer, between two stations.

    Raises:
        DataError: an event has more than `cut.most`; the line names the cut that rejects least.
    """
    inner, outer = (np.flatnonzero(hits.station == station) for station in (inner_station, outer_station))
    first, last, partners = _windows(hits, inner, outer, cut.window)
    counts = np.maximum(last - first, 0)
    _check_patience(hits, inner, outer, counts, cut)
    kept, found = [], np.zeros(len(hits.number), dtype=np.int64)
    for rows in blocks(counts):
        row, place = expand(first[rows], last[rows])
        a, b = inner[rows][row], partners[place]
        near = cut.accept(a, b)
        pairs = np.stack([a[near], b[near]], axis=1)
        found += np.bincount(hits.event[pairs[:, 0]], minlength=len(found))
        if len(found) and found.max() > cut.most:
            tested = int(counts[hits.event[inner] == found.argmax()].sum())
            _explode(hits, int(found.argmax()), inner, outer, tested, len(pairs) / max(len(a), 1), cut)
        kept.append(pairs)
    return np.concatenate(kept) if kept else np.empty((0, 2), dtype=np.int64)


def _windows(hits: Places, inner: Ints, outer: Ints, window: float) -> tuple[Ints, Ints, Ints]:
    """Where the partners of each inner hit begin and end in a sorted array of outer hits, and that array.

    Hits near the seam stand in it twice, once a turn away.
    """
    u = hits.u[outer]
    if hits.period:
        low, high = outer[u < window - np.pi], outer[u > np.pi - window]
        outer = np.concatenate([outer, low, high])
        u = np.concatenate([u, hits.u[low] + TURN, hits.u[high] - TURN])
        stride = 16.0
    else:
        stride = float(np.ptp(hits.u)) + 4 * window + 1 if len(hits.u) else 1.0
    key = hits.event[outer] * stride + u
    order = np.argsort(key, kind="stable")  # ghosts share their phi: no other event may decide their order
    key = key[order]
    centre = hits.event[inner] * stride + hits.u[inner]
    first = np.searchsorted(key, centre - window, side="right")
    last = np.searchsorted(key, centre + window, side="left")
    return first, last, outer[order]


def _check_patience(hits: Places, inner: Ints, outer: Ints, counts: Ints, cut: Cut) -> None:
    tested = np.bincount(hits.event[inner], weights=counts, minlength=len(hits.number))
    if len(tested) and tested.max() > PATIENCE * cut.most:
        _explode(hits, int(tested.argmax()), inner, outer, int(tested.max()), 0.0, cut)


def _explode(hits: Places, event: int, inner: Ints, outer: Ints, tested: int, passed: float, cut: Cut) -> None:
    """Say which of the two cuts lets more through."""
    pairs = int((hits.event[inner] == event).sum()) * int((hits.event[outer] == event).sum())
    loose = cut.names[0] if tested / max(pairs, 1) >= passed else cut.names[1]
    size = int((hits.event == event).sum())
    raise DataError(
        f"event {hits.number[event]}: {size:,} hits give more than {cut.most:,} {cut.what}; tighten {loose}, which lets "
        f"most through, or raise {cut.most_name}"
    )


def blocks(counts: Ints) -> Iterator[slice]:
    """Consecutive rows that expand to about BLOCK places, at least one row each."""
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        done = int(ends[begin - 1]) if begin else 0
        stop = max(int(np.searchsorted(ends, done + BLOCK, side="right")), begin + 1)
        yield slice(begin, stop)
        begin = stop


def expand(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Every (row, place) with first[row] <= place < last[row]."""
    counts = np.maximum(last - first, 0)
    rows = np.repeat(np.arange(len(first)), counts)
    ends = np.cumsum(counts)
    places = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts) + np.repeat(first, counts)
    return rows, places
