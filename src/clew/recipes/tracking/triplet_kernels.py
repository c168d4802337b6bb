"""The loops over hits, pairs and triplets of one event, compiled by numba at the first use and cached.

Pairs and triplets are described by the circle through the beam line and two hits: its curvature (1 / radius, signed,
1/mm) and dz/ds, where s is the length of the arc from the beam line across the beam. Both are equal for all pairs of a
track, up to the resolution and multiple scattering. Stations rise along a track, so pairs and triplets form a graph
without cycles.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

Array = Any


@njit(nogil=True, cache=True)
def arc(radius: float, curvature: float) -> float:
    """Length of the arc from the beam line to a radius."""
    half = min(abs(curvature) * radius * 0.5, 1.0)
    return radius * (1 + half * half / 6 + 3 * half**4 / 40)


@njit(nogil=True, cache=True)
def find_pairs(
    hits: Array, first: Array, links: Array, slopes: Array, barrel: Array, cuts: Array, pairs: Array, shape: Array
) -> int:
    """Pairs of hits on linked stations that lie on a circle through the beam line within the cuts.

    Args:
        hits: phi, r, z of each hit (hits, 3), sorted by station and phi.
        first: First hit of each station (stations + 1).
        links: Inner and outer station of each link.
        slopes: Lowest and highest dz/ds of each link.
        barrel: Whether a station is a cylinder.
        cuts: Largest curvature, largest |z| at the beam line.
        pairs: Is filled with inner and outer hit (capacity, 2).
        shape: Is filled with curvature, dz/ds, z at the beam line, chord (capacity, 4).

    Returns:
        The number of pairs, which may exceed the capacity; only the first are stored.
    """
    count = 0
    for link in range(len(links)):
        start, stop = first[links[link, 1]], first[links[link, 1] + 1]
        if start == stop:
            continue
        cylinder = barrel[links[link, 1]]
        far, rim = 0.0, 0.0
        for b in range(start, stop):
            far, rim = max(far, abs(hits[b, 2])), max(rim, hits[b, 1])
        for a in range(first[links[link, 0]], first[links[link, 0] + 1]):
            reach = rim if cylinder else min(rim, _reach(hits[a, 1], hits[a, 2], far, cuts[1]))
            window = min(0.5 * cuts[0] * max(reach - hits[a, 1], 0.0) * 1.15 + 1e-3, math.pi)
            count = _partners(a, window, start, stop, hits, slopes[link], cuts, pairs, shape, count)
    return count


@njit(nogil=True, cache=True)
def _reach(radius: float, z: float, far: float, z0: float) -> float:
    """The largest radius at which a line from the beam through (radius, z) meets the disc at |z| = far."""
    near = abs(z) - z0
    return radius * (far - z0) / near if near > 10.0 else math.inf


@njit(nogil=True, cache=True)
def _partners(
    a: int,
    window: float,
    start: int,
    stop: int,
    hits: Array,
    slopes: Array,
    cuts: Array,
    pairs: Array,
    shape: Array,
    count: int,
) -> int:
    """Add the pairs of one inner hit. The outer hits are sorted by phi; the window may cross the end of the range."""
    low, high = hits[a, 0] - window, hits[a, 0] + window
    phi = hits[start:stop, 0]
    for turn in range(-1, 2):
        b = start + np.searchsorted(phi, low + 2 * math.pi * turn)
        end = high + 2 * math.pi * turn
        while b < stop and hits[b, 0] <= end:
            delta = hits[b, 0] - hits[a, 0] - 2 * math.pi * turn
            if _pair_shape(hits[a, 1], hits[a, 2], hits[b, 1], hits[b, 2], delta, slopes, cuts, shape, count):
                if count < len(pairs):
                    pairs[count, 0], pairs[count, 1] = a, b
                count += 1
            b += 1
    return count


@njit(nogil=True, cache=True)
def _pair_shape(
    ra: float,
    za: float,
    rb: float,
    zb: float,
    delta: float,
    slopes: Array,
    cuts: Array,
    shape: Array,
    row: int,
) -> bool:
    """Whether a pair passes the cuts. If it does, its shape is stored in a row."""
    chord = math.sqrt(max((rb - ra) ** 2 + 2 * ra * rb * (1 - math.cos(delta)), 1e-6))
    curvature = 2 * math.sin(delta) / chord
    if abs(curvature) > cuts[0] or rb <= ra:
        return False
    sa = arc(ra, curvature)
    slope = (zb - za) / max(arc(rb, curvature) - sa, 1e-3)
    z0 = za - slope * sa
    if abs(z0) > cuts[1] or slope < slopes[0] or slope > slopes[1]:
        return False
    if row < len(shape):
        shape[row, 0], shape[row, 1], shape[row, 2], shape[row, 3] = curvature, slope, z0, chord
    return True


@njit(nogil=True, cache=True)
def find_triplets(
    pairs: Array,
    shape: Array,
    begin: Array,
    order: Array,
    hits: Array,
    errors: Array,
    scatter: float,
    cut: float,
    triplets: Array,
    pulls: Array,
) -> int:
    """Pairs of pairs that share the middle hit, with equal curvature and dz/ds within the errors.

    Args:
        pairs: Inner and outer hit of each pair.
        shape: Curvature, dz/ds, z at the beam line, chord of each pair.
        begin: Per hit the first position in `order` of the pairs that start there (hits + 1).
        order: Numbers of pairs, sorted by inner hit.
        hits: phi, r, z of each hit.
        errors: Of each hit, across (mm) and of z along the track's direction: constant (mm), and per unit of dz/ds.
        scatter: Angle of multiple scattering in a layer, times pT and curvature: rad per 1/mm.
        cut: Largest sum of the squares of the two pulls.
        triplets: Is filled with inner and outer pair (capacity, 2).
        pulls: Is filled with the two pulls (capacity, 2).

    Returns:
        The number of triplets, which may exceed the capacity; only the first are stored.
    """
    count = 0
    wide = _largest_variances(pairs, shape, hits, errors, scatter) * cut
    for first in range(len(pairs)):
        middle = pairs[first, 1]
        for place in range(begin[middle], begin[middle + 1]):
            second = order[place]
            if (shape[second, 0] - shape[first, 0]) ** 2 > wide[first, 0] + wide[second, 0]:
                continue
            if (shape[second, 1] - shape[first, 1]) ** 2 > wide[first, 1] + wide[second, 1]:
                continue
            a, c = pairs[first, 0], pairs[second, 1]
            bend, tilt = _pulls(shape[first], shape[second], a, middle, c, hits, errors, scatter)
            if bend * bend + tilt * tilt < cut:
                if count < len(triplets):
                    triplets[count, 0], triplets[count, 1] = first, second
                    pulls[count, 0], pulls[count, 1] = bend, tilt
                count += 1
    return count


@njit(nogil=True, cache=True)
def _largest_variances(pairs: Array, shape: Array, hits: Array, errors: Array, scatter: float) -> Array:
    """Shares of pairs in the variances that `_pulls` divides by. The sum of two pairs is larger: for a fast first
    test."""
    wide = np.empty((len(pairs), 2))
    for row in range(len(pairs)):
        a, b = pairs[row]
        curvature, slope, near = shape[row, 0], shape[row, 1], 1 / shape[row, 3]
        grow = math.sqrt(1 + slope * slope)
        kink = scatter * (abs(curvature) + 2e-5) * math.sqrt(grow)
        across = (_width(errors[a], hits[a, 1] * curvature) / hits[a, 1]) ** 2
        across += (_width(errors[b], hits[b, 1] * curvature) / hits[b, 1]) ** 2
        along = _depth(errors[a], slope) ** 2 + _depth(errors[b], slope) ** 2
        wide[row, 0] = 8 * near * near * across + 8 * (kink / hits[a, 1]) ** 2
        wide[row, 1] = 2 * near * near * along + (kink * grow) ** 2
    return wide


@njit(nogil=True, cache=True)
def _pulls(
    inner: Array, outer: Array, a: int, b: int, c: int, hits: Array, errors: Array, scatter: float
) -> tuple[float, float]:
    """The change of curvature and of dz/ds at the middle hit, divided by what is expected."""
    ra, rb, rc = hits[a, 1], hits[b, 1], hits[c, 1]
    near, far = 1 / inner[3], 1 / outer[3]
    curvature, slope = 0.5 * (inner[0] + outer[0]), 0.5 * (inner[1] + outer[1])
    grow = math.sqrt(1 + slope * slope)  # 1 / sin(theta)
    kink = scatter * abs(curvature) * math.sqrt(grow)
    kink = math.sqrt(kink * kink + (scatter * 2e-5) ** 2)
    across = (2 * near / ra * _width(errors[a], ra * curvature)) ** 2
    across += (2 * far / rc * _width(errors[c], rc * curvature)) ** 2
    across += (2 * (near + far) / rb * _width(errors[b], rb * curvature)) ** 2
    across += (2 * kink / rc) ** 2 * (1 + ((rc - ra) / rb) ** 2)
    along = (near * _depth(errors[a], slope)) ** 2 + (far * _depth(errors[c], slope)) ** 2
    along += ((near + far) * _depth(errors[b], slope)) ** 2 + (kink * grow) ** 2
    return (outer[0] - inner[0]) / math.sqrt(across), (outer[1] - inner[1]) / math.sqrt(along)


@njit(nogil=True, cache=True)
def _width(error: Array, bend: float) -> float:
    """The error across the track, with that of the radius of a hit: `bend` is twice the sine of the angle to it."""
    return math.sqrt(error[0] ** 2 + (0.5 * bend * error[2]) ** 2)


@njit(nogil=True, cache=True)
def _depth(error: Array, slope: float) -> float:
    """The error of z of a hit at the place where the track crosses it."""
    depth: float = error[1] + error[2] * abs(slope)
    return depth


@njit(nogil=True, cache=True)
def chain_lengths(triplets: Array, rank: Array, before: Array, after: Array) -> None:
    """The number of pairs of the longest chain that ends (`before`) and that starts (`after`) with each pair.

    Args:
        triplets: Inner and outer pair (triplets, 2).
        rank: Numbers of triplets, sorted by the station of the middle hit.
        before: Is filled; ones at the start.
        after: Is filled; ones at the start.
    """
    for place in range(len(rank)):
        inner, outer = triplets[rank[place], 0], triplets[rank[place], 1]
        before[outer] = max(before[outer], before[inner] + 1)
    for place in range(len(rank) - 1, -1, -1):
        inner, outer = triplets[rank[place], 0], triplets[rank[place], 1]
        after[inner] = max(after[inner], after[outer] + 1)


@njit(nogil=True, cache=True)
def best_chains(triplets: Array, rank: Array, weight: Array, best: Array, previous: Array) -> None:
    """For each pair the largest sum of weights of a chain of triplets that ends with it.

    Args:
        triplets: Inner and outer pair (triplets, 2).
        rank: Numbers of the triplets that may be used, sorted by the station of the middle hit.
        weight: Weight of each triplet.
        best: Is filled with the sums; zeros at the start.
        previous: Is filled with the pair before in that chain; -1 at the start.
    """
    for place in range(len(rank)):
        row = rank[place]
        inner, outer = triplets[row, 0], triplets[row, 1]
        total = best[inner] + weight[row]
        if total > best[outer]:
            best[outer], previous[outer] = total, inner


@njit(nogil=True, cache=True)
def accept_chains(ends: Array, previous: Array, pairs: Array, minimum: int, owner: Array, number: int) -> int:
    """Accept chains in the given order, unless a hit of them belongs to an accepted one.

    Args:
        ends: The last pair of each chain, best first.
        previous: The pair before each pair, -1 at the start of a chain.
        pairs: Inner and outer hit of each pair.
        minimum: Smallest number of hits of a chain.
        owner: The track of each hit, -1 for none. Is filled.
        number: Number of the first accepted chain.

    Returns:
        The number of the next chain.
    """
    for last in ends:
        size, pair, free = 1, last, owner[pairs[last, 1]] < 0
        while pair >= 0 and free:
            free = owner[pairs[pair, 0]] < 0
            size += 1
            pair = previous[pair]
        if not free or size < minimum:
            continue
        owner[pairs[last, 1]] = number
        pair = last
        while pair >= 0:
            owner[pairs[pair, 0]] = number
            pair = previous[pair]
        number += 1
    return number
