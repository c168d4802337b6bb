"""The detector as declared: cylinders around the beam or planes across it, and hits in its own coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from clew import Section, Table
from clew.errors import DataError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Positive = Annotated[float, Field(gt=0)]

TURN = 2 * np.pi

_BARREL = {
    "radii": (32.3, 72.1, 116.1, 172.1, 260.3, 360.2, 500.2, 660.2, 820.2, 1020.2),
    "r_range": (0.0, 1100.0),
    "z_max": 1100.0,
    "field": 2.0,
}
PRESETS: dict[str, dict[str, Any]] = {
    "bes3": {},
    "bmn": {"shape": "planes", "field": 0.6},
    "trackml": _BARREL,
    # ACTS' GenericDetector is TrackML's; forward tracks leave the short pixel barrel and come back to the strips'
    "acts": {**_BARREL, "gaps": "bridge", "half_lengths": (491.0,) * 4 + (1084.0,) * 6},
}
"""What differs from the defaults of `Detector` for each detector that has a name."""


class Detector(Section):
    """Stations in the order a particle crosses them, and the scale of each coordinate in the networks' features.

    A name stands for a whole detector: whatever is left at its default becomes that detector's. Any other one is
    declared by its shape and its `radii` or `planes`.
    """

    name: Literal["bes3", "bmn", "trackml", "acts"] = "bes3"
    """Whose events: what `clew data generate` makes, and how text is laid out."""
    shape: Literal["cylinders", "planes"] = "cylinders"
    radii: tuple[Positive, ...] = (81.555, 126.055, 166.555)
    """mm, cylinders from the inside out; the station numbers of the hits count through them."""
    planes: tuple[float, ...] = (123.44, 156.1, 245.0, 397.0, 645.4, 1126.5, 1353.3, 1606.6, 1836.68)
    """mm from the target along the beam, where the shape is planes."""
    r_range: tuple[float, float] = (80.0, 167.0)
    """mm, scaled to [-1, 1]."""
    phi_max: Positive = 3.15
    """rad, scaled to 1."""
    z_max: Positive = 423.5
    """mm, scaled to 1."""
    x_max: Positive = 800.0
    """mm, scaled to 1, for planes."""
    y_max: Positive = 400.0
    """mm, scaled to 1, for planes."""
    field: Positive = 1.0
    """T, along z for cylinders, along y for planes; only for the momentum shown in plots."""
    gaps: Literal["skip", "bridge"] = "skip"
    """What becomes of a track that misses a station: `skip` links consecutive stations only, `bridge` also those with
    one station between them."""
    half_lengths: tuple[Positive, ...] = ()
    """mm, of each cylinder along the beam: hit graphs then bridge a station only where it does not reach."""

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, data: Any) -> Any:
        return {**PRESETS.get(str(data.get("name", "bes3")), {}), **data} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _rising(self) -> Detector:
        if len(self.positions) < 2 or any(np.diff(self.positions) <= 0):
            name = "planes" if self.planar else "radii"
            raise ValueError(f"{name} must be two or more rising numbers, got {list(self.positions)}")
        if self.half_lengths and len(self.half_lengths) != len(self.radii):
            raise ValueError(f"half_lengths must be as many as radii ({len(self.radii)}), got {len(self.half_lengths)}")
        return self

    @property
    def planar(self) -> bool:
        """Whether the stations are planes."""
        return self.shape == "planes"

    @property
    def positions(self) -> tuple[float, ...]:
        """Where each station is along the depth: radius or z, mm."""
        return self.planes if self.planar else self.radii

    @property
    def scales(self) -> tuple[float, float, float]:
        """What is 1 to a network, of (w, u, v)."""
        if self.planar:
            return (self.planes[-1] - self.planes[0]) / 2, self.x_max, self.y_max
        return (self.r_range[1] - self.r_range[0]) / 2, self.phi_max, self.z_max

    def links(self) -> list[tuple[int, int]]:
        """Pairs of stations that may be linked, inner and outer."""
        last = len(self.positions)
        near = [(station, station + 1) for station in range(last - 1)]
        return near + [(station, station + 2) for station in range(last - 2)] if self.gaps == "bridge" else near


@dataclass(frozen=True)
class Places:
    """Hits in the coordinates of their detector, flat over all events of a table.

    w is the depth (r, or z for planes, mm); u the coordinate in which tracks bend (phi in rad, or x in mm); v the one
    in which they are straight (z, or y, mm). `number` is what the events are called.
    """

    event: Ints
    station: Ints
    w: Floats
    u: Floats
    v: Floats
    period: float
    """Of u: a turn, or 0 where there is no seam."""
    number: Ints

    def across(self, a: Ints, b: Ints) -> Floats:
        """u of b minus u of a, the short way round."""
        difference = self.u[b] - self.u[a]
        return wrap(difference) if self.period else difference

    def deeper(self, a: Ints, b: Ints) -> Floats:
        """w of b minus w of a, kept away from 0 so that a slope is a number even where hits are misplaced."""
        difference = self.w[b] - self.w[a]
        return np.where(np.abs(difference) < 1e-6, 1e-6, difference)


def wrap(angle: Floats) -> Floats:
    """An angle, or a difference of two, into [-pi, pi)."""
    return (angle + np.pi) % TURN - np.pi


def places(events: Table, detector: Detector, *, check: bool = True) -> Places:
    """The hits of all events.

    Raises:
        DataError: a station that the detector does not have.
    """
    x, y, z = (events.ragged(name).values.astype(np.float64) for name in "xyz")
    station = events.ragged("station").values.astype(np.int64)
    stations = len(detector.positions)
    if check and station.size and not (station.min() >= 0 and station.max() < stations):
        wrong = int(station[(station < 0) | (station >= stations)][0])
        raise DataError(f"a hit has station {wrong}, the detector has 0 to {stations - 1}")
    event = events.ragged("x").events
    number = events.fixed("event") if "event" in events else np.arange(len(events))
    if detector.planar:
        return Places(event, station, z, x, y, 0.0, number)
    return Places(event, station, np.hypot(x, y), np.arctan2(y, x), z, TURN, number)


def in_mm(events: Table) -> Table:
    """Coordinates in mm, whatever the file has them in; units that are not declared are taken for mm.

    Raises:
        DataError: a unit of length nobody knows.
    """
    factors = {"mm": 1.0, "": 1.0, "cm": 10.0, "m": 1000.0}
    changed: dict[str, Any] = {}
    for name in ("x", "y", "z", "vx", "vy", "vz"):
        unit = events.units.get(name, "") if name in events else ""
        if unit not in factors:
            raise DataError(f"column '{name}' is in '{unit}', expected one of mm, cm, m")
        if factors[unit] != 1:
            column = events.ragged(name)
            changed[name] = column.share(column.values * factors[unit])
    return events.join(changed, units=dict.fromkeys(changed, "mm")) if changed else events
