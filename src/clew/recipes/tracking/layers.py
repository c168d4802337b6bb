"""The layers of the whole GenericDetector as stations, and the links between them that particles use.

A station is a (volume, layer). Stations are numbered so that a particle from the beam crosses them in rising order:
the barrel of each part before its end caps, discs from the inside out. A link is a pair of stations that true tracks
cross one after the other, with the range of dz/ds that these tracks have between them. `tools/layer_links.py` measures
them on simulated muons (`measure_links`) and stores them in `layer_links.csv`.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clew import Table
from clew.recipes.tracking.geometry import Floats, Ints
from clew.recipes.tracking.truth import true_track_numbers

_PARTS = ((7, 8, 9, 7), (12, 13, 14, 6), (16, 17, 18, 6))
"""Negative end cap, barrel, positive end cap, and number of discs on each side, of the three parts from the inside."""
_BARREL = {8: (2, 4, 6, 8), 13: (2, 4, 6, 8), 17: (2, 4)}
_ENDS = ("inner", "outer")
LINK_FILE = Path(__file__).with_name("layer_links.csv")

SLOPE_QUANTILE, SLOPE_MARGIN = 0.0005, 0.03
"""Share of the tracks below and above the range of a link, and what is added to the range on each side (relative to
1 + |dz/ds|)."""
MIN_TRACKS = 4
"""Smallest number of tracks of a link, in the sample."""


def _stations() -> tuple[tuple[int, int], ...]:
    stations: list[tuple[int, int]] = []
    for negative, barrel, positive, discs in _PARTS:
        stations += [(barrel, layer) for layer in _BARREL[barrel]]
        stations += [(negative, 2 * number) for number in range(discs, 0, -1)]
        stations += [(positive, 2 * number) for number in range(1, discs + 1)]
    return tuple(stations)


STATIONS = _stations()
"""(volume, layer) of each station."""
IN_BARREL = np.array([volume in _BARREL for volume, _ in STATIONS])
"""Whether the modules of a station are parallel to the beam."""


class LayerLinks(NamedTuple):
    """Pairs of stations (links, 2), inner and outer, and the lowest and highest dz/ds between them (links, 2)."""

    stations: Ints
    slopes: Floats


def stations_of(events: Table) -> Ints:
    """The station of each hit; -1 for layers that the GenericDetector does not have."""
    volume, layer = (events.ragged(name).values.astype(np.int64) for name in ("volume_id", "layer_id"))
    number = np.full((32, 32), -1, dtype=np.int64)
    for station, place in enumerate(STATIONS):
        number[place] = station
    known = (volume >= 0) & (volume < 32) & (layer >= 0) & (layer < 32)
    return np.where(known, number[np.where(known, volume, 0), np.where(known, layer, 0)], -1)


@functools.cache
def layer_links(*, bridged: bool = False) -> LayerLinks:
    """The links that come with clew.

    Args:
        bridged: Whether two links that follow each other are also joined to one, for tracks without a hit between.
    """
    links = read_links(LINK_FILE)
    return _with_bridges(links) if bridged else links


def _with_bridges(links: LayerLinks) -> LayerLinks:
    """Links, and pairs of links as one. The range of a pair is that which both allow; ranges of equal links are
    joined."""
    first, second = np.nonzero(links.stations[:, 1][:, None] == links.stations[:, 0])
    low = np.maximum(links.slopes[first, 0], links.slopes[second, 0])
    high = np.minimum(links.slopes[first, 1], links.slopes[second, 1])
    both = np.stack([links.stations[first, 0], links.stations[second, 1]], axis=1)[low < high]
    ends = np.concatenate([links.stations, both])
    slopes = np.concatenate([links.slopes, np.stack([low, high], axis=1)[low < high]])
    stations, number = np.unique(ends, axis=0, return_inverse=True)
    joined = np.stack([np.full(len(stations), np.inf), np.full(len(stations), -np.inf)], axis=1)
    np.minimum.at(joined[:, 0], number.ravel(), slopes[:, 0])
    np.maximum.at(joined[:, 1], number.ravel(), slopes[:, 1])
    return LayerLinks(stations, joined)


def read_links(path: Path) -> LayerLinks:
    """Links from a file that `write_links` wrote."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = {place: station for station, place in enumerate(STATIONS)}
    ends = [
        [numbers[int(row[f"{end}_volume"]), int(row[f"{end}_layer"])] for end in ("inner", "outer")] for row in rows
    ]
    slopes = [[float(row["slope_low"]), float(row["slope_high"])] for row in rows]
    return LayerLinks(np.array(ends, dtype=np.int64), np.array(slopes))


def measure_links(events: Table) -> tuple[LayerLinks, Ints]:
    """Measure the links on the true tracks of simulated events.

    Args:
        events: ACTS events, all hits.

    Returns:
        The links that at least MIN_TRACKS tracks use, and the number of tracks of each.
    """
    station, track = stations_of(events), true_track_numbers(events)
    x, y, z = (events.ragged(name).values.astype(np.float64) for name in "xyz")
    order = np.lexsort((np.hypot(x, y), station, track))
    order = order[(track[order] >= 0) & (station[order] >= 0)]
    a, b = order[:-1], order[1:]
    follow = (track[a] == track[b]) & (station[a] != station[b])
    a, b = a[follow], b[follow]
    slope = (z[b] - z[a]) / np.maximum(np.hypot(x[b] - x[a], y[b] - y[a]), 1e-3)
    code, link = np.unique(station[a] * len(STATIONS) + station[b], return_inverse=True)
    counts = np.bincount(link)
    ranges = np.array([_range(slope[link == number]) for number in range(len(code))]).reshape(-1, 2)
    used = counts >= MIN_TRACKS
    stations = np.stack(np.divmod(code, len(STATIONS)), axis=1)
    return LayerLinks(stations[used], ranges[used]), counts[used]


def _range(slope: Floats) -> tuple[float, float]:
    low, high = np.quantile(slope, [SLOPE_QUANTILE, 1 - SLOPE_QUANTILE])
    return float(low - SLOPE_MARGIN * (1 + abs(low))), float(high + SLOPE_MARGIN * (1 + abs(high)))


def write_links(path: Path, links: LayerLinks, counts: Ints) -> None:
    """Write links as a file that `read_links` reads, the most used first for each inner station."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["inner_volume", "inner_layer", "outer_volume", "outer_layer", "tracks", "slope_low", "slope_high"]
        )
        for row in np.lexsort((-counts, links.stations[:, 0])):
            ends = [number for station in links.stations[row] for number in STATIONS[station]]
            writer.writerow([*ends, counts[row], *(f"{slope:.4f}" for slope in links.slopes[row])])
