"""Selection of hits by the tracks to which they belong.

These transforms expect the ragged columns `station` and `track` (-1 for noise: a hit of no track) besides the
coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator

from clew.data.table import Table
from clew.data.transforms.base import Transform
from clew.errors import DataError

NOISE = -1


@dataclass(frozen=True)
class Tracks:
    """The tracks of a table. `of_hit` is the number of the track of each hit, counted over all events, -1 for noise."""

    of_hit: NDArray[np.int64]
    count: int
    hits: NDArray[np.int64]
    stations: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @classmethod
    def of(cls, events: Table) -> Tracks:
        """Group the hits by track. `stations` counts different stations; `first` and `last` are the outermost ones."""
        track, station = events.ragged("track"), events.ragged("station").values.astype(np.int64)
        true = track.values != NOISE
        names, number = np.unique(track.values, return_inverse=True)  # any integers may name tracks
        key = track.events * len(names) + number
        of_hit = np.full(len(key), -1, dtype=np.int64)
        unique, of_hit[true] = np.unique(key[true], return_inverse=True)
        count, numbers = len(unique), station[true]
        first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(first, of_hit[true], numbers)
        np.maximum.at(last, of_hit[true], numbers)
        lowest = int(numbers.min(initial=0))
        span = int(numbers.max(initial=0)) - lowest + 1
        cells = np.unique(of_hit[true] * span + (numbers - lowest))
        return cls(
            of_hit,
            count,
            np.bincount(of_hit[true], minlength=count),
            np.bincount(cells // span, minlength=count),
            first,
            last,
        )


class _DropTracks(Transform):
    """Base class of transforms that reject tracks. The hits of these tracks become noise, or are removed."""

    dropped: Literal["noise", "remove"] = "noise"

    def rejected(self, tracks: Tracks) -> NDArray[np.bool_]:
        """Return which tracks are rejected."""
        raise AssertionError("a track cut defines what it rejects")

    def __call__(self, events: Table) -> Table:
        tracks = Tracks.of(events)
        hit = np.append(self.rejected(tracks), False)[tracks.of_hit]
        if self.dropped == "remove":
            return events.select("track", ~hit)
        track = events.ragged("track")
        return events.join({"track": track.share(np.where(hit, NOISE, track.values))})


class DropShort(_DropTracks):
    """Rejects tracks with hits on fewer than `stations` different stations."""

    kind: Literal["drop_short"] = "drop_short"
    stations: int = 3

    def rejected(self, tracks: Tracks) -> NDArray[np.bool_]:
        return tracks.stations < self.stations


class DropSpinning(_DropTracks):
    """Rejects tracks with more than one hit on a station."""

    kind: Literal["drop_spinning"] = "drop_spinning"

    def rejected(self, tracks: Tracks) -> NDArray[np.bool_]:
        return tracks.hits > tracks.stations


class DropHoles(_DropTracks):
    """Rejects tracks that miss a station between their first and their last."""

    kind: Literal["drop_holes"] = "drop_holes"

    def rejected(self, tracks: Tracks) -> NDArray[np.bool_]:
        return tracks.last - tracks.first + 1 > tracks.stations


class DropFakes(Transform):
    """Removes every noise hit, which makes the problem easier."""

    kind: Literal["drop_fakes"] = "drop_fakes"

    def __call__(self, events: Table) -> Table:
        return events.select("track", events.ragged("track").values != NOISE)


class StationLimits(Transform):
    """Limits of the coordinates of each station: `{0: {"z": [-420, 420]}}`, in the unit of the column.

    Hits outside are removed, or are an error. With `scale`, the values inside are mapped to [-1, 1] for each station.
    """

    kind: Literal["station_limits"] = "station_limits"
    limits: dict[int, dict[str, tuple[float, float]]]
    outside: Literal["remove", "error"] = "remove"
    scale: bool = False

    @field_validator("limits")
    @classmethod
    def _ordered(cls, limits: dict[int, dict[str, tuple[float, float]]]) -> dict[int, dict[str, tuple[float, float]]]:
        for station, columns in limits.items():
            for name, (low, high) in columns.items():
                if not low < high:
                    raise ValueError(f"station {station}, {name}: {low} is not below {high}")
        return limits

    def __call__(self, events: Table) -> Table:
        outside = self._outside(events)
        if outside.any() and self.outside == "error":
            hit = int(np.argmax(outside))
            event = int(events.ragged("station").events[hit])
            raise DataError(
                f"event {event}: a hit of station {events.ragged('station').values[hit]} is out of its limits"
            )
        events = events.select("station", ~outside)
        return self._scaled(events) if self.scale else events

    def _outside(self, events: Table) -> NDArray[np.bool_]:
        station = events.ragged("station").values
        out = np.zeros(len(station), dtype=bool)
        for number, columns in self.limits.items():
            for name, (low, high) in columns.items():
                values = events.ragged(name).values
                out |= (station == number) & ((values < low) | (values > high))
        return out

    def _scaled(self, events: Table) -> Table:
        station = events.ragged("station").values
        new: dict[str, NDArray[np.float64]] = {}
        for number, columns in self.limits.items():
            for name, (low, high) in columns.items():
                old = events.ragged(name).values.astype(np.float64)
                values = new.setdefault(name, old.copy())
                on_station = station == number
                values[on_station] = 2 * (old[on_station] - low) / (high - low) - 1
        columns_new = {name: events.ragged(name).share(values) for name, values in new.items()}
        return events.join(columns_new, units=dict.fromkeys(new, ""))


class LengthBuckets(Transform):
    """Adds the column `bucket`: the group of similar length to which each event, or the hits of each track, belong.

    Bucket k contains lengths up to `edges[k]`. Lengths above the last edge belong to the last bucket. With `by: track`
    the column has one value per hit, and noise has bucket -1.
    """

    kind: Literal["buckets"] = "buckets"
    edges: tuple[int, ...]
    by: Literal["event", "track"] = "event"

    @field_validator("edges")
    @classmethod
    def _rising(cls, edges: tuple[int, ...]) -> tuple[int, ...]:
        if not edges or list(edges) != sorted(set(edges)):
            raise ValueError(f"bucket edges must rise, got {list(edges)}")
        return edges

    def _bucket(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.minimum(np.searchsorted(self.edges, lengths), len(self.edges) - 1)

    def __call__(self, events: Table) -> Table:
        if self.by == "event":
            return events.join({"bucket": self._bucket(events.ragged("station").lengths)})
        tracks = Tracks.of(events)
        of_track = np.append(self._bucket(tracks.hits), NOISE)
        return events.join({"bucket": events.ragged("track").share(of_track[tracks.of_hit])})
