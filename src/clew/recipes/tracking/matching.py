"""Found tracks against true ones: exact hit sets, majorities, the TrackML score; and what true tracks are like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clew import Table
from clew.recipes.tracking.geometry import Floats, Ints
from clew.recipes.tracking.truth import number

Bools = NDArray[np.bool_]

SHARES = (0.5, 0.75)


@dataclass(frozen=True)
class Match:
    """True tracks and found tracks side by side.

    `true_found` and `found_true` are by the exact set of hits. By a majority (`true_share`, `found_share`: one row for
    each of SHARES) a found track is a true one's when that share of the hits of *both* is common to them.
    """

    true_event: Ints
    true_found: Bools
    found_event: Ints
    found_true: Bools
    true_of_hit: Ints
    """Which true track each hit is of, counted through the table; -1 for noise."""
    true_share: Bools
    found_share: Bools
    scored: Bools
    """Hits that count for the TrackML score: common to two tracks that each have more than half of the other."""


def match(samples: Table, found: Ints) -> Match:
    """Compare the track each hit was given (-1: none) with the column `track`."""
    hit_event, true = samples.ragged("track").events, number(samples)
    true_event, true_size = _groups(true, hit_event)
    found_event, found_size = _groups(found, hit_event)
    both = (found >= 0) & (true >= 0)
    key, of_hit, common = np.unique(
        found[both] * max(len(true_size), 1) + true[both], return_inverse=True, return_counts=True
    )
    f, t = np.divmod(key, max(len(true_size), 1))
    of_found, of_true = common / found_size[f], common / true_size[t]
    exact = (of_found == 1) & (of_true == 1)
    shares = [(of_found >= share) & (of_true >= share) for share in SHARES]
    scored = np.zeros(len(true), dtype=bool)
    scored[both] = ((of_found > 0.5) & (of_true > 0.5))[of_hit]

    def marked(size: int, rows: Ints) -> Bools:
        mask = np.zeros(size, dtype=bool)
        mask[rows] = True
        return mask

    return Match(
        true_event,
        marked(len(true_size), t[exact]),
        found_event,
        marked(len(found_size), f[exact]),
        true,
        np.stack([marked(len(true_size), t[share]) for share in shares]),
        np.stack([marked(len(found_size), f[share]) for share in shares]),
        scored,
    )


def _groups(numbers: Ints, event: Ints) -> tuple[Ints, Ints]:
    """Event and size of each numbered group of hits."""
    used = numbers >= 0
    count = int(numbers.max(initial=-1)) + 1
    of = np.zeros(count, dtype=np.int64)
    of[numbers[used]] = event[used]
    return of, np.bincount(numbers[used], minlength=count)


def momenta(samples: Table, track: Ints) -> tuple[Floats, Floats]:
    """Transverse momentum (GeV) and polar angle (degrees) of tracks, from the true momentum beside their hits."""
    used = np.flatnonzero(track >= 0)
    count = int(track.max(initial=-1)) + 1
    first = np.zeros(count, dtype=np.int64)
    first[track[used][::-1]] = used[::-1]
    px, py, pz = (samples.ragged(name).values[first].astype(np.float64) for name in ("px", "py", "pz"))
    pt = np.hypot(px, py)
    return pt, np.degrees(np.arctan2(pt, pz))


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
