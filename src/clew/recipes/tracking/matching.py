"""Comparison of found with true tracks: exact hit sets, majorities, the TrackML score; and kinematics of true
tracks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from clew import Table
from clew.recipes.tracking.geometry import Bools, Floats, Ints
from clew.recipes.tracking.truth import true_track_numbers

MAJORITIES = (0.5, 0.75)


@dataclass(frozen=True)
class Match:
    """The comparison of true and found tracks; the same for networks and for the Kalman filter.

    A found track belongs to the true track that most of its hits come from (the lower number if two have as many). The
    match is exact (`true_found`, `found_true`) if both have the same hits. It is a match by majority (`true_majority`,
    `found_majority`: one row for each of MAJORITIES) if at least that share of the hits of *both* is common to them,
    the double majority of TrackML. With the share of the found track alone any two hits of a track would be a match.
    """

    true_event: Ints
    true_hits: Ints
    """Number of hits of each true track."""
    true_found: Bools
    found_event: Ints
    found_true: Bools
    true_of_hit: Ints
    """The true track of each hit, numbered through the table; -1 for noise."""
    true_majority: Bools
    found_majority: Bools
    scored_hits: Bools
    """Hits that count for the TrackML score: common to a found and a true track that share more than half of their
    hits."""

    def by_criterion(self, criterion: str) -> Match:
        """The same with `true_found` and `found_true` by another criterion: `exact`, or a majority of `50` or `75`
        %."""
        if criterion == "exact":
            return self
        row = MAJORITIES.index(int(criterion) / 100)
        return replace(self, true_found=self.true_majority[row], found_true=self.found_majority[row])


def match(samples: Table, found_track: Ints) -> Match:
    """Compare the found track of each hit (-1: none) with the column `track`."""
    hit = np.flatnonzero(found_track >= 0)
    return match_lists(samples, found_track[hit], hit)


def match_lists(samples: Table, found_track: Ints, hit: Ints) -> Match:
    """Compare tracks that may share hits with the column `track`.

    Args:
        samples: Samples with the column `track`.
        found_track: Numbers of found tracks, one entry per track and hit, numbered through the table.
        hit: The hit of each entry, numbered through the table. No entry is repeated.
    """
    hit_event, true = samples.ragged("track").events, true_track_numbers(samples)
    true_event, true_size = _groups(true[true >= 0], hit_event[true >= 0])
    found_event, found_size = _groups(found_track, hit_event[hit])
    track, common = _owners(found_track, true[hit], len(found_size))
    matched = np.flatnonzero(track >= 0)
    track, common = track[matched], common[matched]
    overlap = np.minimum(common / found_size[matched], common / true_size[track])
    majority_track = np.full(len(found_size), -1, dtype=np.int64)
    majority_track[matched[overlap > 0.5]] = track[overlap > 0.5]
    passed = [overlap == 1, *(overlap >= share for share in MAJORITIES)]
    of_true = np.stack([_marked(len(true_size), track[rows]) for rows in passed])
    of_found = np.stack([_marked(len(found_size), matched[rows]) for rows in passed])
    scored = _marked(len(true), hit[(majority_track[found_track] >= 0) & (majority_track[found_track] == true[hit])])
    return Match(true_event, true_size, of_true[0], found_event, of_found[0], true, of_true[1:], of_found[1:], scored)


def _owners(found_track: Ints, true_track: Ints, tracks: int) -> tuple[Ints, Ints]:
    """The true track that most hits of each found track come from (-1: all noise), and the number of these hits."""
    used, base = true_track >= 0, int(true_track.max(initial=0)) + 1
    key, common = np.unique(found_track[used] * base + true_track[used], return_counts=True)
    owner_of, track = np.divmod(key, base)
    order = np.lexsort((track, -common, owner_of))
    first = order[np.unique(owner_of[order], return_index=True)[1]]
    owner, counts = np.full(tracks, -1, dtype=np.int64), np.zeros(tracks, dtype=np.int64)
    owner[owner_of[first]], counts[owner_of[first]] = track[first], common[first]
    return owner, counts


def _marked(size: int, rows: Ints) -> Bools:
    mask = np.zeros(size, dtype=bool)
    mask[rows] = True
    return mask


def _groups(numbers: Ints, event: Ints) -> tuple[Ints, Ints]:
    """Event and number of hits of each group."""
    count = int(numbers.max(initial=-1)) + 1
    group_event = np.zeros(count, dtype=np.int64)
    group_event[numbers] = event
    return group_event, np.bincount(numbers, minlength=count)


def true_kinematics(samples: Table, track: Ints) -> tuple[Floats, Floats]:
    """True pT (GeV) and polar angle (degrees) of tracks, at the hit where pT is largest."""
    px, py, pz = (samples.ragged(name).values.astype(np.float64) for name in ("px", "py", "pz"))
    pt = np.hypot(px, py)
    used = np.flatnonzero(track >= 0)
    used = used[np.argsort(pt[used], kind="stable")]
    largest = np.zeros(int(track.max(initial=-1)) + 1, dtype=np.int64)
    largest[track[used]] = used  # the last one stays
    return pt[largest], np.degrees(np.arctan2(pt[largest], pz[largest]))


def fitted_kinematics(samples: Table, track: Ints, field: float) -> tuple[Floats, Floats]:
    """pT (GeV) and polar angle (degrees) of tracks in a field along z, fitted to their hits.

    pT comes from the circle through the beam line that fits the hits best, the angle from a line in r-z. Text files
    contain no momenta, so simulated and public events are treated in the same way.
    """
    used = track >= 0
    x, y, z = (samples.ragged(name).values[used].astype(np.float64) for name in "xyz")
    r, count = np.hypot(x, y), int(track.max(initial=-1)) + 1

    def total(values: Floats) -> Floats:
        return np.bincount(track[used], weights=values, minlength=count).astype(np.float64)

    # rotate the track to the first axis: for a straight track the sums below would cancel to rounding errors
    azimuth = np.arctan2(total(y), total(x))[track[used]]
    x, y = x * np.cos(azimuth) + y * np.sin(azimuth), y * np.cos(azimuth) - x * np.sin(azimuth)
    sxx, sxy, syy, sx, sy = total(x * x), total(x * y), total(y * y), total(x * r * r), total(y * r * r)
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = sxx * syy - sxy**2
        a, b = (sx * syy - sy * sxy) / determinant / 2, (sy * sxx - sx * sxy) / determinant / 2
        radius = np.nan_to_num(np.hypot(a, b), nan=1e9, posinf=1e9)
        n = total(np.ones_like(r))
        slope = (n * total(r * z) - total(r) * total(z)) / (n * total(r * r) - total(r) ** 2)
    return 0.299792458 * field * radius / 1000, np.degrees(np.arctan2(1.0, slope))
