"""Fast simulation of a fixed-target tracker similar to that of BM@N: nine planes across the beam, inside a dipole.

Charged particles start at a target at the origin and bend in x-z in a uniform field along y. Each plane consists of
modules that read x and a stereo coordinate u = x + y tan(15 degrees). A hit is any crossing of two fired strips in a
module, so particles in the same module make fakes. The layout, the number of planes, and the first and the last z are
those of the real detector. All other numbers are chosen, not measured. Units: mm, GeV.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from clew.errors import ConfigError
from clew.recipes.tracking import text_files
from clew.recipes.tracking.geometry import Detector

Columns = dict[str, NDArray[np.float64]]

BLOCK = 64
"""Events that share one random stream."""
PLANES = Detector(name="bmn").planes
SILICON = 3
"""Number of silicon planes, which come first; the others are GEM. Files number the two kinds separately."""
TRACKS = 12.0
"""Mean number of charged particles per event, in addition to one that every event has."""
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
    """Simulate events `first_event` to `first_event + events - 1` of the sample defined by `seed`.

    Returns:
        One array per column, lengths in mm. `station` numbers all planes. `track` is numbered from 0 in each event; -1
        is a fake, which has no momentum.

    Raises:
        ConfigError: An argument is negative.
    """
    if min(events, seed, first_event) < 0:
        raise ConfigError(f"events, seed, first_event must be 0 or more, got {events}, {seed}, {first_event}")
    blocks = range(first_event // BLOCK, -(-(first_event + events) // BLOCK)) if events else range(0)
    parts = [_block(seed, number) for number in blocks] or [_block(seed, 0)]
    hits = {name: np.concatenate([part[name] for part in parts]) for name in NAMES}
    in_range = (hits["event"] >= first_event) & (hits["event"] < first_event + events)
    return {name: values[in_range] for name, values in hits.items()}


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


def plane_crossing(p: Columns, z: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x and y where particles cross the plane at z; NaN for particles that the field turns back before."""
    along = np.hypot(p["px"], p["pz"])
    bend = p["charge"] * CURVATURE / along  # 1/R, per mm
    start = np.arctan2(p["px"], p["pz"])
    sine = np.sin(start) + bend * (z - p["vz"])
    angle = np.arcsin(np.where(np.abs(sine) < 1, sine, np.nan))
    x = p["vx"] + (np.cos(start) - np.cos(angle)) / bend
    return x, p["vy"] + p["py"] / along * (angle - start) / bend


def _plane(rng: Generator, station: int, p: Columns) -> Columns:
    """Hits of one plane: true hits and fakes."""
    half_x, half_y = SIZES[station]
    x, y = plane_crossing(p, PLANES[station])
    detected = np.flatnonzero((np.abs(x) < half_x) & (np.abs(y) < half_y) & (rng.random(len(x)) < EFFICIENCY))
    noise = rng.normal(0, NOISE[station], (2, len(detected)))
    strip, stereo = x[detected] + noise[0], x[detected] + y[detected] * STEREO + noise[1]
    module = _module(x[detected], y[detected], half_x, half_y)
    group = p["event"][detected] * 64 + module
    i, j = _pairs(group)
    cross = (stereo[j] - strip[i]) / STEREO
    accepted = (i == j) | ((_module(strip[i], cross, half_x, half_y) == module[i]) & (np.abs(cross) < half_y))
    i, j, cross = i[accepted], j[accepted], cross[accepted]
    true, particle = i == j, detected[i]
    hits = {name: np.where(true, p[name][particle], 0.0) for name in ("px", "py", "pz", "vx", "vy", "vz")}
    ones = np.full(len(i), 1.0)
    hits |= {"event": p["event"][particle], "x": strip[i], "y": cross, "z": PLANES[station] * ones}
    return hits | {"track": np.where(true, p["track"][particle], -1.0), "station": station * ones, "det": ones * 0}


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
    """Write synthetic hits in the text layout `bmn`: in cm, with silicon (det 0) and GEM (det 1) stations numbered
    separately."""
    gem = hits["station"] >= SILICON
    rows = {**hits, "det": gem.astype(float), "station": hits["station"] - SILICON * gem}
    rows |= {name: hits[name] / 10 for name in ("x", "y", "z", "vx", "vy", "vz")}
    text_files.write_text(path, "synthetic BM@N-like events", rows, NAMES)
