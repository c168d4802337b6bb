"""Fast simulation of a fixed-target tracker like BM@N's: nine planes across the beam, inside a dipole.

Charged particles start at a target in the origin and bend in x-z in a uniform field along y. Each plane is made of
modules that read x and a stereo coordinate u = x + y tan(15 degrees); a hit is any crossing of two fired strips in a
module, so particles that share a module make fakes. The facts that are known of the real detector are the layout, the
number of planes, and the first and the last z; all other numbers are chosen, not measured. Units: mm, GeV.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clew.errors import ConfigError
from clew.recipes.tracking import writing
from clew.recipes.tracking.geometry import Detector

Columns = dict[str, NDArray[np.float64]]

BLOCK = 64
"""Events that share one random stream."""
PLANES = Detector(name="bmn").planes
SILICON = 3
"""The first planes; the others are GEM. A file counts them separately."""
TRACKS = 12.0
"""Mean charged particles an event, beside the one that is always there."""
FIELD = 0.6
CURVATURE = 0.299792458e-3 * FIELD
STEREO = np.tan(np.radians(15.0))
SPREAD = {"px": 0.25, "py": 0.25}
MEDIAN, SIGMA = 1.2, 0.6
POSITIVE = 0.7
VERTEX = (1.0, 1.0, 0.0)
EFFICIENCY = 0.97
SIZES = ((120.0, 90.0), (140.0, 110.0), (200.0, 150.0), *((800.0, 400.0),) * 6)
NOISE = (0.05, 0.05, 0.05, *(0.2,) * 6)
MODULES = (4, 2)
NAMES = ("event", "x", "y", "z", "det", "station", "track", "px", "py", "pz", "vx", "vy", "vz")


def simulate(events: int, seed: int, first_event: int = 0) -> Columns:
    """Hits of events from `first_event` on of the endless sample that `seed` names: one array a column, in mm.

    `station` counts through all planes; `track` counts from 0 in each event, -1 is a fake, without a momentum.
    Raises ConfigError for a negative argument.
    """
    if min(events, seed, first_event) < 0:
        raise ConfigError(f"events, seed, first_event must be 0 or more, got {events}, {seed}, {first_event}")
    blocks = range(first_event // BLOCK, -(-(first_event + events) // BLOCK)) if events else range(0)
    made = [_block(seed, number) for number in blocks] or [_block(seed, 0)]
    hits = {name: np.concatenate([each[name] for each in made]) for name in NAMES}
    wanted = (hits["event"] >= first_event) & (hits["event"] < first_event + events)
    return {name: values[wanted] for name, values in hits.items()}


def _block(seed: int, number: int) -> Columns:
    rng = np.random.default_rng([seed, 9, number])
    particles = _particles(rng)
    planes = [_plane(rng, station, particles) for station in range(len(PLANES))]
    hits = {name: np.concatenate([plane[name] for plane in planes]) for name in NAMES}
    order = np.lexsort((rng.random(len(hits["x"])), hits["station"], hits["event"]))
    hits["event"] = hits["event"] + number * BLOCK
    return {name: values[order] for name, values in hits.items()}


def _particles(rng: Generator) -> Columns:
    count = 1 + rng.poisson(TRACKS, BLOCK)
    event = np.repeat(np.arange(BLOCK), count)
    size = len(event)
    vertex = rng.normal(0, VERTEX, (BLOCK, 3))[event]
    px, py = (rng.normal(0, SPREAD[name], size) for name in ("px", "py"))
    pz = MEDIAN * np.exp(rng.normal(0, SIGMA, size))
    charge = np.where(rng.random(size) < POSITIVE, 1.0, -1.0)
    track = np.arange(size) - (np.cumsum(count) - count)[event]
    columns = {"event": event, "track": track, "px": px, "py": py, "pz": pz, "charge": charge}
    columns |= {"vx": vertex[:, 0], "vy": vertex[:, 1], "vz": vertex[:, 2]}
    return {name: values.astype(np.float64) for name, values in columns.items()}


def crossing(p: Columns, z: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x and y where particles meet the plane at z; NaN where the field has turned them back before."""
    along = np.hypot(p["px"], p["pz"])
    bend = p["charge"] * CURVATURE / along  # 1/R, per mm
    start = np.arctan2(p["px"], p["pz"])
    sine = np.sin(start) + bend * (z - p["vz"])
    angle = np.arcsin(np.where(np.abs(sine) < 1, sine, np.nan))
    x = p["vx"] + (np.cos(start) - np.cos(angle)) / bend
    return x, p["vy"] + p["py"] / along * (angle - start) / bend


def _plane(rng: Generator, station: int, p: Columns) -> Columns:
    """Hits of one plane, true ones and fakes."""
    half_x, half_y = SIZES[station]
    x, y = crossing(p, PLANES[station])
    seen = np.flatnonzero((np.abs(x) < half_x) & (np.abs(y) < half_y) & (rng.random(len(x)) < EFFICIENCY))
    noise = rng.normal(0, NOISE[station], (2, len(seen)))
    strip, stereo = x[seen] + noise[0], x[seen] + y[seen] * STEREO + noise[1]
    module = _module(x[seen], y[seen], half_x, half_y)
    group = p["event"][seen] * 64 + module
    i, j = _pairs(group)
    cross = (stereo[j] - strip[i]) / STEREO
    kept = (i == j) | ((_module(strip[i], cross, half_x, half_y) == module[i]) & (np.abs(cross) < half_y))
    i, j, cross = i[kept], j[kept], cross[kept]
    true, of = i == j, seen[i]
    hits = {name: np.where(true, p[name][of], 0.0) for name in ("px", "py", "pz", "vx", "vy", "vz")}
    whole = np.full(len(i), 1.0)
    hits |= {"event": p["event"][of], "x": strip[i], "y": cross, "z": PLANES[station] * whole}
    return hits | {"track": np.where(true, p["track"][of], -1.0), "station": station * whole, "det": whole * 0}


def _module(x: NDArray[np.float64], y: NDArray[np.float64], half_x: float, half_y: float) -> NDArray[np.int64]:
    column = np.floor((x + half_x) / (2 * half_x) * MODULES[0]).astype(np.int64)
    return column * MODULES[1] + (y > 0)


def _pairs(group: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All ordered pairs of members of one group."""
    order = np.argsort(group, kind="stable")
    first, last = (np.searchsorted(group[order], group, side=side) for side in ("left", "right"))
    counts = last - first
    i = np.repeat(np.arange(len(group)), counts)
    place = np.arange(len(i)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    return i, order[place]


def write_text(path: Path, hits: Columns) -> None:
    """Synthetic hits in the layout `bmn`: in cm, silicon (det 0) and GEM (det 1) stations counted separately."""
    gem = hits["station"] >= SILICON
    rows = {**hits, "det": gem.astype(float), "station": hits["station"] - SILICON * gem}
    rows |= {name: hits[name] / 10 for name in ("x", "y", "z", "vx", "vy", "vz")}
    writing.write_text(path, "synthetic BM@N-like events", rows, NAMES)
