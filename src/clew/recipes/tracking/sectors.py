"""Events cut into sectors around the beam, so that graphs and networks of large events fit into memory.

A sector is a wedge in phi with a halo on both sides: hits of the neighbours that the tracks in the wedge cross. Every
hit is in the core of exactly one sector.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from clew import Section, Table
from clew.recipes.tracking.geometry import TURN, Bools, Floats


class SectorConfig(Section):
    """How events are cut into sectors around the beam."""

    number: Annotated[int, Field(ge=1)] = 1
    """Number of sectors per event. With 1 a sample is a whole event; otherwise each sector is a sample."""
    halo: Annotated[float, Field(gt=0, le=1.5)] = 0.3
    """Width of the halo on both sides of a sector, rad. A track of 0.7 GeV turns by 0.45 rad in the whole detector."""


def split_events(events: Table, config: SectorConfig) -> Iterator[Table]:
    """Cut events into sectors.

    Args:
        events: Hits with the columns x, y, z.
        config: Number and halo.

    Yields:
        One table per sector, with a row for each event. `collision` holds the number of the event, `event` 1000 times
        that number plus the sector, `core` (hits) 1 for hits of the sector itself, 0 for its halo.
    """
    x = events.ragged("x")
    phi = np.arctan2(events.ragged("y").values, x.values).astype(np.float64)
    numbers = events.fixed("event").astype(np.int64)
    for sector in range(config.number):
        core, near = sector_masks(phi, sector, config)
        names = {"collision": numbers, "event": 1000 * numbers + sector}
        yield events.join({"core": x.share(core.astype(np.uint8)), **names}).select("x", near)


def sector_masks(phi: Floats, sector: int, config: SectorConfig) -> tuple[Bools, Bools]:
    """Which hits are in the core of a sector, and which in the core or the halo."""
    width = TURN / config.number
    position = (phi - sector * width) % TURN
    core = np.floor(phi % TURN / width).astype(np.int64) % config.number == sector
    near = core | (position < width + config.halo) | (position > TURN - config.halo)
    return core, near
