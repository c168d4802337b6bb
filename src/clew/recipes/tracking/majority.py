"""Judging tracks by majority: which particle most of a track's hits are of. NumPy only.

Works on lists of hits, which may share hits, so a Kalman filter's tracks and a network's are judged by the same lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clew import Table, tally

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Best(NamedTuple):
    """For every found track the particle that has most of its hits (-1: none), and how well the two agree.

    Particles are counted through the table in the order of `true`; arrays `particle`, `of_track`, `of_particle` have
    one entry a track, the others one a particle.
    """

    particle: Ints
    of_track: Floats
    """Share of the track's hits that are the particle's."""
    of_particle: Floats
    """Share of the particle's hits that are the track's."""
    hits: Ints
    pt: Floats

    def matched(self, share: float) -> NDArray[np.bool_]:
        """Tracks that match: at least `share` of both the track's hits and the particle's are common."""
        return (self.of_track >= share) & (self.of_particle >= share)


def compare(events: Table, tracks: Table) -> Best:
    """Found tracks against true ones.

    `events` has `track` (the particle of each hit, -1 noise) and the true momentum there, `tpx` and `tpy` in GeV; a
    particle's pT is the largest at its hits. `tracks` has one row for each of the events, with pairs `found` (a track's
    number, from 0 in each event) and `hit` (the number of one of its hits in the event).
    """
    particle, owner = _particles(events)
    pt = np.zeros(len(particle))
    used = owner >= 0
    np.maximum.at(pt, owner[used], np.hypot(events.ragged("tpx").values, events.ragged("tpy").values)[used])
    hits = np.bincount(owner[used], minlength=len(particle))
    track, hit = _pairs(events, tracks)
    size = np.bincount(track)
    best, common = _majority(track, owner[hit], len(size), len(particle))
    none = best < 0
    of_particle = common / np.where(none, 1, hits[best] if len(hits) else 1)
    return Best(best, np.where(none, 0, common / size), np.where(none, 0, of_particle), hits, pt)


def judge(
    events: Table, tracks: Table, *, pt_min: float = 1.0, hits_min: int = 6, shares: Sequence[float] = (0.5, 0.75)
) -> dict[str, tally.Ratio]:
    """Efficiency, purity and duplicates for each share, named `efficiency_50` and so on.

    Efficiency: particles above `pt_min` GeV with at least `hits_min` hits that some track matches, of all such.
    Purity: tracks that match a particle, of any pT, of all tracks. Duplicates: tracks that match a particle which
    another track matches already, of all tracks.
    """
    best, figures = compare(events, tracks), {}
    wanted = (best.pt >= pt_min) & (best.hits >= hits_min)
    for share in shares:
        good = best.matched(share)
        found = np.unique(best.particle[good])
        seen = np.zeros(len(best.hits), dtype=bool)
        seen[found] = True
        name = f"{100 * share:.0f}"
        figures[f"efficiency_{name}"] = tally.Ratio.of(seen[wanted])
        figures[f"purity_{name}"] = tally.Ratio.of(good)
        figures[f"duplicates_{name}"] = tally.Ratio(float(good.sum() - len(found)), float(len(good)))
    return figures


def _particles(events: Table) -> tuple[Ints, Ints]:
    """Event and id of each particle with hits, and which of them each hit is of; -1 for noise."""
    track = events.ragged("track")
    used = track.values != -1
    pairs = np.stack([track.events[used], track.values[used]], axis=1)
    particle, number = np.unique(pairs, axis=0, return_inverse=True)
    owner = np.full(len(track.values), -1, dtype=np.int64)
    owner[used] = number.ravel()
    return particle, owner


def _pairs(events: Table, tracks: Table) -> tuple[Ints, Ints]:
    """Tracks and their hits, both counted through the table; a hit named twice by a track counts once."""
    found = tracks.ragged("found")
    hit = tracks.ragged("hit").values + events.ragged("track").offsets[found.events]
    pairs = np.unique(np.stack([found.events, found.values, hit], axis=1), axis=0)
    fresh = np.any(np.diff(pairs[:, :2], axis=0) != 0, axis=1)
    number = np.append(0, np.cumsum(fresh)) if len(pairs) else np.empty(0, dtype=np.int64)
    return number.astype(np.int64), pairs[:, 2]


def _majority(track: Ints, owner: Ints, tracks: int, particles: int) -> tuple[Ints, Ints]:
    """The most frequent owner among each track's hits and how often it is there; the lowest wins a draw."""
    used = owner >= 0
    key, common = np.unique(track[used] * max(particles, 1) + owner[used], return_counts=True)
    of, particle = np.divmod(key, max(particles, 1))
    order = np.lexsort((particle, -common, of))
    first = order[np.unique(of[order], return_index=True)[1]]
    best, times = np.full(tracks, -1, dtype=np.int64), np.zeros(tracks, dtype=np.int64)
    best[of[first]], times[of[first]] = particle[first], common[first]
    return best, times
