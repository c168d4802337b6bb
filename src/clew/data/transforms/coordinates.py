"""Cartesian and cylindrical coordinates of hits."""

from __future__ import annotations

from typing import Literal

import numpy as np

from clew.data.table import Table
from clew.data.transforms.base import Transform


class Cylindrical(Transform):
    """Adds the columns r, in the unit of x, and phi = atan2(y, x), in rad within [-pi, pi]."""

    kind: Literal["cylindrical"] = "cylindrical"
    keep: bool = True
    """Whether x and y remain."""

    def __call__(self, events: Table) -> Table:
        x, y = events.ragged("x"), events.ragged("y")
        new = {"r": x.share(np.hypot(x.values, y.values)), "phi": x.share(np.arctan2(y.values, x.values))}
        events = events.join(new, units={"r": events.units.get("x", ""), "phi": "rad"})
        return events if self.keep else events.drop("x", "y")


class Cartesian(Transform):
    """Adds the columns x and y from r and phi."""

    kind: Literal["cartesian"] = "cartesian"
    keep: bool = True
    """Whether r and phi remain."""

    def __call__(self, events: Table) -> Table:
        r, phi = events.ragged("r"), events.ragged("phi")
        new = {"x": r.share(r.values * np.cos(phi.values)), "y": r.share(r.values * np.sin(phi.values))}
        unit = events.units.get("r", "")
        events = events.join(new, units={"x": unit, "y": unit})
        return events if self.keep else events.drop("r", "phi")
