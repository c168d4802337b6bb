"""True tracks: which hits belong to them, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew import Table
from clew.recipes.tracking.geometry import Bools, Ints


@dataclass(frozen=True)
class TrueTracks:
    """`track`: the true track of each hit, numbered through the table, -1 for noise. `rank`: position on the track."""

    track: Ints
    rank: Ints

    @classmethod
    def of(cls, events: Table) -> TrueTracks:
        """From the columns `track` and `station`. Hits of a track on the same station have the same rank."""
        track, station = true_track_numbers(events), events.ragged("station").values.astype(np.int64)
        order = np.lexsort((station, track))
        fresh = np.append(True, np.diff(track[order]) != 0)[: len(order)]
        step = np.append(False, np.diff(station[order]) != 0)[: len(order)] & ~fresh
        count = np.cumsum(step)
        base = np.maximum.accumulate(np.where(fresh, count, 0)) if len(order) else count
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = count - base
        return cls(track, rank)

    def follows(self, a: Ints, b: Ints) -> Bools:
        """Whether b is the next hit on the track of a."""
        same = (self.track[a] == self.track[b]) & (self.track[a] >= 0)
        return np.asarray(same & (self.rank[b] == self.rank[a] + 1))


def true_track_numbers(events: Table) -> Ints:
    """The true track of each hit, numbered through the table in order of events; -1 for noise."""
    hit_event, track = events.ragged("track").events, events.ragged("track").values.astype(np.int64)
    lowest, highest = int(track.min(initial=0)), int(track.max(initial=0))
    if highest - lowest >= 1 << 31:  # large ids: a key made of event and id would overflow
        track = np.where(track == -1, -1, np.unique(track, return_inverse=True)[1])
        lowest, highest = -1, int(track.max(initial=0))
    key = hit_event * (highest - lowest + 1) + (track - lowest)
    return renumber(np.where(track == -1, -1, key))


def renumber(numbers: Ints) -> Ints:
    """The same groups, numbered 0, 1, 2, ...; -1 stays."""
    new = np.full(len(numbers), -1, dtype=np.int64)
    used = numbers >= 0
    new[used] = np.unique(numbers[used], return_inverse=True)[1]
    return new
