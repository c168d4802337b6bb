"""TrackML events as the recipes want them: the ten layers of the barrel as stations, true momenta beside the hits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clew import Table, readers

BARREL = ((8, 2), (8, 4), (8, 6), (8, 8), (13, 2), (13, 4), (13, 6), (13, 8), (17, 2), (17, 4))
"""(volume, layer) of each station, from the inside out."""


def read(path: str) -> Iterator[Table]:
    """The event of a pair of files; hits outside the barrel are left out."""
    for events in readers.read(path, "trackml"):
        yield barrel(events)


def barrel(events: Table) -> Table:
    """Adds `station` and renames the true momenta; hits that are on none of the ten layers go."""
    volume, layer = (events.ragged(name).values.astype(np.int64) for name in ("volume_id", "layer_id"))
    station = np.full(len(volume), -1, dtype=np.int64)
    for number, (v, each) in enumerate(BARREL):
        station[(volume == v) & (layer == each)] = number
    like = events.ragged("x")
    new: dict[str, Any] = {"station": like.share(station)}
    new |= {name: like.share(events.ragged(f"t{name}").values) for name in ("px", "py", "pz")}
    units = dict.fromkeys(("px", "py", "pz"), "GeV")
    return events.drop("tpx", "tpy", "tpz").join(new, units=units).select("x", station >= 0)
