"""Found tracks against true ones: exact hit sets, majorities, the TrackML score; and what true tracks are like."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from clew import Table
from clew.recipes.tracking.geometry import Bools, Floats, Ints
from clew.recipes.tracking.truth import number

SHARES = (0.5, 0.75)


@dataclass(frozen=True)
class Match:
    """True tracks and found tracks side by side; the one definition of matching for networks and filters alike.

    A found track belongs to the true one that most of its hits are of (the lower number where two have as many), to no
    other. It is exact (`true_found`, `found_true`) where both have the same hits. By a majority (`true_share`,
    `found_share`: one row for each of SHARES) it matches where at least that share of the hits of *both* is common to
    them: TrackML's double majority. The purity of the found track alone would call any two hits of a track a find.
    """

    true_event: Ints
    true_hits: Ints
    """Hits of each true track."""
    true_found: Bools
    found_event: Ints
    found_true: Bools
    true_of_hit: Ints
    """Which true track each hit is of, counted through the table; -1 for noise."""
    true_share: Bools
    found_share: Bools
    scored: Bools
    """Hits that count for the TrackML score: common to two tracks that each have more than half of the other."""

    def shown(self, by: str) -> Match:
        """The same with `true_found` and `found_true` by `exact` hit sets, or by a majority of `50` or `75` percent."""
        if by == "exact":
            return self
        row = SHARES.index(int(by) / 100)
        return replace(self, true_found=self.true_share[row], found_true=self.found_share[row])


def match(samples: Table, found: Ints) -> Match:
    """Compare the track each hit was given (-1: none) with the column `track`."""
    hit = np.flatnonzero(found >= 0)
    return match_lists(samples, found[hit], hit)


def match_lists(samples: Table, found: Ints, hit: Ints) -> Match:
    """Compare tracks that may share hits with the column `track`.

    Each entry is a found track and one of its hits, both counted through the table; no entry stands there twice.
    """
    hit_event, true = samples.ragged("track").events, number(samples)
    true_event, true_size = _groups(true[true >= 0], hit_event[true >= 0])
    found_event, found_size = _groups(found, hit_event[hit])
    track, common = _owners(found, true[hit], len(found_size))
    own = np.flatnonzero(track >= 0)
    track, common = track[own], common[own]
    least = np.minimum(common / found_size[own], common / true_size[track])
    half = np.full(len(found_size), -1, dtype=np.int64)
    half[own[least > 0.5]] = track[least > 0.5]
    passed = [least == 1, *(least >= share for share in SHARES)]
    of_true = np.stack([_marked(len(true_size), track[rows]) for rows in passed])
    of_found = np.stack([_marked(len(found_size), own[rows]) for rows in passed])
    scored = _marked(len(true), hit[(half[found] >= 0) & (half[found] == true[hit])])
    return Match(true_event, true_size, of_true[0], found_event, of_found[0], true, of_true[1:], of_found[1:], scored)


def _owners(found: Ints, true: Ints, tracks: int) -> tuple[Ints, Ints]:
    """The true track that most hits of each found one are of (-1: all noise), and how many they are."""
    used, base = true >= 0, int(true.max(initial=0)) + 1
    key, common = np.unique(found[used] * base + true[used], return_counts=True)
    of, track = np.divmod(key, base)
    order = np.lexsort((track, -common, of))
    first = order[np.unique(of[order], return_index=True)[1]]
    owner, times = np.full(tracks, -1, dtype=np.int64), np.zeros(tracks, dtype=np.int64)
    owner[of[first]], times[of[first]] = track[first], common[first]
    return owner, times


def _marked(size: int, rows: Ints) -> Bools:
    mask = np.zeros(size, dtype=bool)
    mask[rows] = True
    return mask


def _groups(numbers: Ints, event: Ints) -> tuple[Ints, Ints]:
    """Event and size of each numbered group of hits."""
    count = int(numbers.max(initial=-1)) + 1
    of = np.zeros(count, dtype=np.int64)
    of[numbers] = event
    return of, np.bincount(numbers, minlength=count)


def momenta(samples: Table, track: Ints) -> tuple[Floats, Floats]:
    """Transverse momentum (GeV) and polar angle (degrees) of tracks, true, at the hit where the first is largest."""
    px, py, pz = (samples.ragged(name).values.astype(np.float64) for name in ("px", "py", "pz"))
    pt = np.hypot(px, py)
    used = np.flatnonzero(track >= 0)
    used = used[np.argsort(pt[used], kind="stable")]
    largest = np.zeros(int(track.max(initial=-1)) + 1, dtype=np.int64)
    largest[track[used]] = used  # the last one stays
    return pt[largest], np.degrees(np.arctan2(pt[largest], pz[largest]))


def kinematics(samples: Table, track: Ints, field: float) -> tuple[Floats, Floats]:
    """Transverse momentum (GeV) and polar angle (degrees) of tracks in a field along z, from their hits.

    pT is that of the circle through the beam line that fits the hits best; the angle that of the line in r-z.
    The text layouts carry no momenta, so both samples are measured alike.
    """
    used = track >= 0
    x, y, z = (samples.ragged(name).values[used].astype(np.float64) for name in "xyz")
    r, count = np.hypot(x, y), int(track.max(initial=-1)) + 1

    def total(values: Floats) -> Floats:
        return np.bincount(track[used], weights=values, minlength=count).astype(np.float64)

    # turned to lie along the first axis: for a straight track the sums below would cancel to rounding noise
    along = np.arctan2(total(y), total(x))[track[used]]
    x, y = x * np.cos(along) + y * np.sin(along), y * np.cos(along) - x * np.sin(along)
    sxx, sxy, syy, sx, sy = total(x * x), total(x * y), total(y * y), total(x * r * r), total(y * r * r)
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = sxx * syy - sxy**2
        a, b = (sx * syy - sy * sxy) / determinant / 2, (sy * sxx - sx * sxy) / determinant / 2
        radius = np.nan_to_num(np.hypot(a, b), nan=1e9, posinf=1e9)
        n = total(np.ones_like(r))
        slope = (n * total(r * z) - total(r) * total(z)) / (n * total(r * r) - total(r) ** 2)
    return 0.299792458 * field * radius / 1000, np.degrees(np.arctan2(1.0, slope))
