"""TrackML events in the form of the recipes: the ten layers of the barrel are stations, hits have true momenta."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from clew import Table, readers

BARREL = ((8, 2), (8, 4), (8, 6), (8, 8), (13, 2), (13, 4), (13, 6), (13, 8), (17, 2), (17, 4))
"""(volume, layer) of each station, from the inside out."""
PARTICLES = ("particle_id", "vx", "vy", "vz", "px", "py", "pz", "q", "pdg", "nhits")
"""Columns of ACTS events that describe particles, not hits."""


def read(path: str, kind: str = "trackml") -> Iterator[Table]:
    """Read the events of a file, or of a pair of files. Hits outside the barrel are removed."""
    for events in readers.read(path, kind):
        yield barrel_hits(events) if "volume_id" in events else events


def barrel_hits(events: Table) -> Table:
    """`hit_table` with the `station` of each; those that are on none of the ten layers go."""
    station = barrel_stations(events)
    return hit_table(events).join({"station": events.ragged("x").share(station)}).select("x", station >= 0)


def barrel_stations(events: Table) -> NDArray[np.int64]:
    """The layer of the barrel each hit is on; -1 for none."""
    volume, layer = (events.ragged(name).values.astype(np.int64) for name in ("volume_id", "layer_id"))
    station = np.full(len(volume), -1, dtype=np.int64)
    for number, (v, layer_id) in enumerate(BARREL):
        station[(volume == v) & (layer == layer_id)] = number
    return station


def hit_table(events: Table) -> Table:
    """The columns of hits alone, the true momentum there called px, py, pz."""
    x = events.ragged("x")
    new = {name: x.share(events.ragged(f"t{name}").values) for name in ("px", "py", "pz")}
    units = dict.fromkeys(new, "GeV")
    return events.drop("tpx", "tpy", "tpz", *(name for name in PARTICLES if name in events)).join(new, units=units)
