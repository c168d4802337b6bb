"""Fast simulation of tracking events in a three-layer cylindrical GEM, like the public BES-III CGEM sample.

Each layer reads two coordinates: X strips along z give phi, stereo V strips give v = z + slope * phi. A hit is any
crossing of a fired X cluster with a fired V cluster inside the layer, so n particles make up to n^2 hits: n true ones
and ghosts. On the public 51-event sample this explains 99.5% of the noise. Particles that do not leave exactly one
cluster on every layer (loopers, forward tracks, late decays) fire strips too. The public sample does not contain their
hits, but it contains the ghosts they cause. This module does the same.

The numbers were measured on that sample. "tuned" marks numbers that were adjusted by hand until simulated events
resembled the sample. A comment names any other source. Units: mm, GeV, rad.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clew.errors import ConfigError
from clew.recipes.tracking import simulate_bes3_particles, text_files
from clew.recipes.tracking.geometry import Bools, Floats, Ints
from clew.recipes.tracking.simulate_bes3_particles import Bes3Particles

BLOCK = 256  # events that share one random stream
SPARE = 32  # additional events per block: about 1% have no track and are dropped


class Station(NamedTuple):
    """Geometry of one layer. V strips start again on each `sheet` in phi; ghosts may combine both sheets."""

    radius: float
    half_length: float  # nominal; the sample's hits end less than 1.5 mm inside
    sheet: float
    slope: float  # dv/dphi, mm per rad: one value fits every ghost to six digits
    x_step: float  # rad: cluster centres are multiples of half a strip pitch
    v_step: float  # mm along z: likewise


STATIONS = (
    Station(81.555, 266.0, 2 * np.pi, 95.69546, 0.00365540, 0.48032),
    Station(126.055, 345.0, np.pi, 223.33286, 0.00244848, 0.63791),
    Station(166.555, 423.5, np.pi, 269.92289, 0.00188274, 0.60515),
)

LOST_SHARE = 0.04  # tuned: tracks whose hits are missing in the sample for an unknown reason
CURVATURE = 0.3e-3  # GeV per mm of radius at 1 T
REACH = 800.0  # outer radius of the BES-III drift chamber: a particle that reaches it does not return
TURNS = 6  # tuned: largest number of turns
X_NOISE, V_NOISE = 0.17, 0.22  # r*phi and z-equivalent spread of helix residuals, corrected for rounding
X_MERGE, V_MERGE = 1.5, 3.3  # no two clusters of the sample are closer in r*phi, v
OFF_GRID = 0.12  # share of cluster centres off the half-pitch grid


@dataclass(frozen=True)
class Bes3Hits:
    """Hits of events as arrays of equal length, ordered by event and station, in random order within a station.

    x, y, z are in mm. `track` is numbered from 0 in each event; -1 is a ghost. Every event has at least one track.
    Every track has exactly one hit on each of the stations 0, 1, 2.
    """

    event: Ints
    x: Floats
    y: Floats
    z: Floats
    station: NDArray[np.int8]
    track: Ints


class _Clusters(NamedTuple):
    """Fired strips of one station, ordered by event. phi is the `edge` of the sheet plus `local`."""

    owner: Ints  # index of the particle
    event: Ints
    edge: Floats
    local: Floats
    v: Floats


def simulate(events: int, seed: int, first_event: int = 0) -> Bes3Hits:
    """Simulate events `first_event` to `first_event + events - 1` of the sample defined by `seed`.

    An event depends on the seed and its own number only, so processes can simulate disjoint ranges of one sample.

    Raises:
        ConfigError: An argument is negative.
    """
    if min(events, seed, first_event) < 0:
        raise ConfigError(f"events, seed, first_event must be 0 or more, got {events}, {seed}, {first_event}")
    first, last = first_event // BLOCK, (first_event + max(events, 1) - 1) // BLOCK
    blocks = [_block(seed, number) for number in range(first, last + 1)]
    hits = _join(blocks)
    return _take(hits, slice(*np.searchsorted(hits.event, [first_event, first_event + events])))


def _join(parts: list[Bes3Hits]) -> Bes3Hits:
    return Bes3Hits(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Bes3Hits)})


def _take(hits: Bes3Hits, rows: Ints | slice) -> Bes3Hits:
    return Bes3Hits(**{f.name: getattr(hits, f.name)[rows] for f in fields(Bes3Hits)})


def _block(seed: int, number: int) -> Bes3Hits:
    """The BLOCK events of one block. Every block has its own random stream."""
    rng = np.random.default_rng([seed, number])
    particles = simulate_bes3_particles.particles(rng, BLOCK + SPARE)
    clusters = [_clusters(rng, s, particles) for s in STATIONS]
    size = len(particles.event)
    one_cluster = np.all([np.bincount(c.owner, minlength=size) == 1 for c in clusters], axis=0)
    labelled = one_cluster & (rng.random(size) > LOST_SHARE)
    hits = _join([_crossings(rng, s, c, labelled) for s, c in enumerate(clusters)])
    event, track = _renumber(hits.event, hits.track, particles.event)
    order = np.argsort(event * len(STATIONS) + hits.station + rng.random(len(event)))
    order = order[: np.searchsorted(event[order], BLOCK)]
    return _take(replace(hits, event=event + number * BLOCK, track=track), order)


def _renumber(event: Ints, owner: Ints, particle_event: Ints) -> tuple[Ints, Ints]:
    """New event numbers (events without a track are moved to the end), and track numbers within each event."""
    # Two tracks merged in X and in V share one hit: one of them loses it, is no longer complete, and becomes noise.
    complete = np.bincount(owner[owner >= 0], minlength=len(particle_event)) == len(STATIONS)
    tracks = np.bincount(particle_event[complete], minlength=BLOCK + SPARE)
    rank = np.cumsum(complete) - 1 - (np.cumsum(tracks) - tracks)[particle_event]
    has_track = tracks > 0
    assert has_track.sum() >= BLOCK
    number = np.where(has_track, np.cumsum(has_track) - 1, BLOCK)
    return number[event], np.where((owner >= 0) & complete[owner], rank[owner], -1)


def _clusters(rng: Generator, station: Station, p: Bes3Particles) -> _Clusters:
    """Smeared crossings of all helices with one cylinder. Helices that stay inside REACH cross several times."""
    meets, loops, phis, turned = _intersections(p, station.radius)
    turn, back = (index[:, None] for index in np.divmod(np.arange(2 * TURNS), 2))
    rise = p.momentum[:, 2] / CURVATURE
    z = p.start[:, 2] + rise * (np.tile(turned, (TURNS, 1)) + 2 * np.pi * turn)
    fires = meets & (np.abs(z) < station.half_length) & (loops | (turn + back == 0))
    owner, passed = np.nonzero(fires.T)
    phi = phis[passed % 2, owner] + p.drift[owner] * passed / 2
    shift = rng.normal(0, X_NOISE / station.radius, len(owner))
    sheet, local = np.divmod((phi + shift) % (2 * np.pi), station.sheet)
    # v belongs to the true crossing, but is computed with the smeared phi so that both are on one sheet
    v = z[passed, owner] + station.slope * (local - shift) + rng.normal(0, V_NOISE, len(owner))
    return _Clusters(owner, p.event[owner], sheet * station.sheet, local, v)


def _intersections(p: Bes3Particles, radius: float) -> tuple[Bools, Bools, Floats, Floats]:
    """Whether helices cross the cylinder, whether they loop, and phi and turning angle of both crossings (2, n)."""
    (x, y), (px, py) = p.start[:, :2].T, p.momentum[:, :2].T
    cx, cy = x - p.sense * py / CURVATURE, y + p.sense * px / CURVATURE
    bend, distance = np.hypot(px, py) / CURVATURE, np.hypot(cx, cy)
    cosine = (radius**2 + distance**2 - bend**2) / (2 * radius * distance)
    meets = (np.abs(cosine) < 1) & (np.hypot(x, y) < radius)
    phi = np.arctan2(cy, cx) + np.outer([-1, 1], np.arccos(np.clip(cosine, -1, 1)))
    bearing = np.arctan2(radius * np.sin(phi) - cy, radius * np.cos(phi) - cx)
    turned = p.sense * (bearing - np.arctan2(y - cy, x - cx)) % (2 * np.pi)
    swap = turned[0] > turned[1]
    phi, turned = (np.where(swap, pair[::-1], pair) for pair in (phi, turned))
    return meets, distance + bend < REACH, phi, turned


def _merge(rng: Generator, group: Ints, value: Floats, gap: float, step: float) -> tuple[Floats, Ints]:
    """Merge neighbours closer than `gap` within a group. Returns centre and first member of the cluster of each."""
    order = np.lexsort((value, group))
    ordered = value[order]
    new_cluster = np.append(True, (np.diff(ordered) > gap) | (np.diff(group[order]) != 0))
    first = np.flatnonzero(new_cluster)
    centre = np.add.reduceat(ordered, first) / np.diff(np.append(first, len(order)))
    centre = np.where(rng.random(len(centre)) < OFF_GRID, centre, step * np.round(centre / step))
    member = np.empty(len(order), dtype=np.int64)
    member[order] = np.cumsum(new_cluster) - 1
    return centre[member], order[first][member]


def _crossings(rng: Generator, station: int, c: _Clusters, labelled: Bools) -> Bes3Hits:
    """Hits of one station, without the true hits of unlabelled particles. `track` is the particle index or -1."""
    s, sheet = STATIONS[station], 2 * c.event + (c.edge > 0)
    local, x_first = _merge(rng, sheet, c.local, X_MERGE / s.radius, s.x_step)
    v, v_first = _merge(rng, c.event, c.v, V_MERGE, s.v_step)
    i, j, row = _pairs(c.event)
    z = v[j] - s.slope * local[i]
    index = np.arange(len(v))
    keep = (x_first == index)[i] & (v_first == index)[j] & (np.abs(z) < s.half_length)
    same_particle = np.flatnonzero(c.owner[i] == c.owner[j])
    place = row[x_first[i[same_particle]]] + v_first[j[same_particle]]
    owner = c.owner[i[same_particle]]
    is_labelled = labelled[owner]
    label = np.full(len(i), -1)
    label[place[is_labelled]] = owner[is_labelled]
    keep[place[~is_labelled]] &= label[place[~is_labelled]] >= 0
    pick = np.flatnonzero(keep)
    phi = (c.edge + local)[i[pick]]
    x, y, layer = s.radius * np.cos(phi), s.radius * np.sin(phi), np.full(len(pick), station, dtype=np.int8)
    return Bes3Hits(c.event[i[pick]], x, y, z[pick], layer, label[pick])


def _pairs(event: Ints) -> tuple[Ints, Ints, Ints]:
    """All ordered pairs (i, j) of one event, sorted by i. The pair (i, j) has the index row[i] + j."""
    count = np.bincount(event)
    width = count[event]
    row = np.cumsum(width) - width - (np.cumsum(count) - count)[event]
    i = np.repeat(np.arange(len(event)), width)
    return i, np.arange(len(i)) - row[i], row


def write_text(path: Path, hits: Bes3Hits) -> None:
    """Write synthetic hits in the text layout `bes3`. The first line marks them as synthetic."""
    names = ("event", "x", "y", "z", "station", "track")
    text_files.write_text(path, "synthetic BES-III-CGEM-like events", vars(hits), names)
