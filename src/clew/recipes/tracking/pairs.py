"""Pairs of hits that pass cuts, over all events at once, in memory that does not grow with what the cuts reject.

An event's number is part of the sort key, so that the partners of a hit are one window of one sorted array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from clew.errors import DataError
from clew.recipes.tracking.geometry import TURN, Bools, Floats, Ints, Places

BLOCK = 1 << 20
"""Candidates looked at in one go: about 50 MB."""
FAR = 1e5
"""mm: no detector is wider than 100 m; a coordinate beyond would reach into the next event's part of a key."""
PATIENCE = 50
"""Candidates an event may have for each link it may have: beyond, the window is wrong and would take minutes."""


@dataclass(frozen=True)
class Cut:
    """A window in u, what else must pass, and how much may pass in one event."""

    window: float
    accept: Callable[[Ints, Ints], Bools]
    """From the numbers of rows and of the hits that may be theirs."""
    names: tuple[str, str]
    """The settings behind the window and behind `accept`."""
    most: int
    most_name: str
    what: str
    """What is being made."""


def between(hits: Places, link: tuple[int, int], cut: Cut) -> Ints:
    """Hit numbers (pairs, 2), inner and outer, of all pairs between two stations; rows of `cut.accept` are inner hits.

    Raises:
        DataError: an event has more than `cut.most`; the line names the cut that rejects least.
    """
    inner = np.flatnonzero(hits.station == link[0])
    by_hit = replace(cut, accept=lambda row, hit: cut.accept(inner[row], hit))
    row, hit = around(hits, hits.event[inner], hits.u[inner], link[1], by_hit)
    return np.stack([inner[row], hit], axis=1)


def around(hits: Places, event: Ints, centre: Floats, station: int, cut: Cut) -> tuple[Ints, Ints]:
    """Every (row, hit): hits of a station around a place in u, for any number of rows, each in an event.

    Raises:
        DataError: as `between`.
    """
    outer = np.flatnonzero(hits.station == station)
    first, last, partners = _windows(hits, event, centre, outer, cut.window)
    counts = np.maximum(last - first, 0)
    tested = np.bincount(event, weights=counts, minlength=len(hits.number)).astype(np.float64)
    if len(tested) and tested.max() > PATIENCE * cut.most:
        _explode(hits, event, outer, tested, int(tested.argmax()), 0.0, cut)
    rows, found, made = [], [], np.zeros(len(hits.number), dtype=np.int64)
    for block in blocks(counts):
        row, place = expand(first[block], last[block])
        row, hit = row + block.start, partners[place]
        near = cut.accept(row, hit)
        rows.append(row[near])
        found.append(hit[near])
        made += np.bincount(event[rows[-1]], minlength=len(made))
        if made.max(initial=0) > cut.most:
            _explode(hits, event, outer, tested, int(made.argmax()), float(near.mean()), cut)
    nothing = np.empty(0, dtype=np.int64)
    return np.concatenate([nothing, *rows]), np.concatenate([nothing, *found])


def _windows(hits: Places, event: Ints, centre: Floats, outer: Ints, window: float) -> tuple[Ints, Ints, Ints]:
    """Where the partners of each row begin and end in a sorted array of outer hits, and that array.

    Hits near the seam stand in it twice, once a turn away.
    """
    u = hits.u[outer]
    if hits.period:
        low, high = outer[u < window - np.pi], outer[u > np.pi - window]
        outer = np.concatenate([outer, low, high])
        u = np.concatenate([u, hits.u[low] + TURN, hits.u[high] - TURN])
        stride = 16.0
    else:
        u = np.clip(u, -FAR, FAR)
        centre, stride = np.clip(centre, -FAR, FAR), 4 * FAR + 4 * window
    key = hits.event[outer] * stride + u
    order = np.argsort(key, kind="stable")  # ghosts share their phi: no other event may decide their order
    key = key[order]
    centre = event * stride + centre
    first = np.searchsorted(key, centre - window, side="right")
    last = np.searchsorted(key, centre + window, side="left")
    return first, last, outer[order]


def _explode(hits: Places, event: Ints, outer: Ints, tested: Floats, which: int, passed: float, cut: Cut) -> NoReturn:
    """Say which of the two cuts lets more through."""
    every = int((event == which).sum()) * int((hits.event[outer] == which).sum())
    loose = cut.names[0] if tested[which] / max(every, 1) >= passed else cut.names[1]
    size = int((hits.event == which).sum())
    raise DataError(
        f"event {hits.number[which]}: {size:,} hits give more than {cut.most:,} {cut.what}; tighten {loose}, which "
        f"lets most through, or raise {cut.most_name}"
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
