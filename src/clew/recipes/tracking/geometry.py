"""The detector (cylinders around the beam, or planes across it), and hits in the coordinates of the detector."""

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
    # the GenericDetector of ACTS is that of TrackML; forward tracks leave the short pixel barrel and reach the strips
    "acts": {**_BARREL, "gaps": "bridge", "half_lengths": (491.0,) * 4 + (1084.0,) * 6},
}
"""By name of a detector: the values that differ from the defaults of `Detector`."""


class Detector(Section):
    """Stations in the order in which a particle crosses them, and the scale of each coordinate in network features.

    `name` selects a known detector: every value that is not set is that of the named detector. Another detector is
    described by its shape and its `radii` or `planes`.
    """

    name: Literal["bes3", "bmn", "trackml", "acts"] = "bes3"
    """Selects the generator of `clew data generate`, the layout of text files, and the defaults below."""
    shape: Literal["cylinders", "planes"] = "cylinders"
    """Whether stations are cylinders around the beam (`radii`) or planes across it (`planes`)."""
    radii: tuple[Positive, ...] = (81.555, 126.055, 166.555)
    """Radii of the cylinders, mm, from the inside out. Station numbers of hits are positions in this list."""
    planes: tuple[float, ...] = (123.44, 156.1, 245.0, 397.0, 645.4, 1126.5, 1353.3, 1606.6, 1836.68)
    """Positions of the planes along the beam, mm from the target."""
    r_range: tuple[float, float] = (80.0, 167.0)
    """Range of r in mm that is scaled to [-1, 1]."""
    phi_max: Positive = 3.15
    """phi in rad that is scaled to 1."""
    z_max: Positive = 423.5
    """z in mm that is scaled to 1."""
    x_max: Positive = 800.0
    """x in mm that is scaled to 1 (planes)."""
    y_max: Positive = 400.0
    """y in mm that is scaled to 1 (planes)."""
    field: Positive = 1.0
    """Magnetic field in T, along z for cylinders, along y for planes. Used only for the momentum shown in plots."""
    gaps: Literal["skip", "bridge"] = "skip"
    """Which stations are linked: `skip` links consecutive stations, `bridge` also stations with one between them, for
    tracks that miss a station."""
    half_lengths: tuple[Positive, ...] = ()
    """Half length of each cylinder along the beam, mm. Hit graphs then bridge a station only beyond its ends."""

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
        """Depth of each station: radius or z, mm."""
        return self.planes if self.planar else self.radii

    @property
    def scales(self) -> tuple[float, float, float]:
        """Scales of (w, u, v): a coordinate divided by its scale is of order 1."""
        if self.planar:
            return (self.planes[-1] - self.planes[0]) / 2, self.x_max, self.y_max
        return (self.r_range[1] - self.r_range[0]) / 2, self.phi_max, self.z_max

    def links(self) -> list[tuple[int, int]]:
        """Pairs of stations that may be linked, inner and outer."""
        last = len(self.positions)
        near = [(station, station + 1) for station in range(last - 1)]
        return near + [(station, station + 2) for station in range(last - 2)] if self.gaps == "bridge" else near


@dataclass(frozen=True)
class HitCoordinates:
    """Hits of all events of a table in the coordinates of the detector, one array element per hit.

    w is the depth (r, or z for planes, in mm). u is the coordinate in which tracks bend (phi in rad, or x in mm). v is
    the coordinate in which tracks are straight (z, or y, in mm). `event_number` holds the numbers of the events.
    """

    event: Ints
    station: Ints
    w: Floats
    u: Floats
    v: Floats
    period: float
    """Period of u: 2 pi, or 0 if u is not an angle."""
    event_number: Ints

    def delta_u(self, a: Ints, b: Ints) -> Floats:
        """u of b minus u of a; for angles the difference of smallest size."""
        difference = self.u[b] - self.u[a]
        return wrap_angle(difference) if self.period else difference

    def delta_w(self, a: Ints, b: Ints) -> Floats:
        """w of b minus w of a, never exactly 0: slopes stay finite even for misplaced hits."""
        difference = self.w[b] - self.w[a]
        return np.where(np.abs(difference) < 1e-6, 1e-6, difference)


def wrap_angle(angle: Floats) -> Floats:
    """An angle moved into [-pi, pi)."""
    return (angle + np.pi) % TURN - np.pi


def hit_coordinates(events: Table, detector: Detector, *, check: bool = True) -> HitCoordinates:
    """The hits of all events in the coordinates of the detector.

    Args:
        events: Table with the columns `x`, `y`, `z` (mm) and `station` per hit.
        detector: The detector.
        check: Whether station numbers are checked.

    Raises:
        DataError: A hit has a station that the detector does not have.
    """
    x, y, z = (events.ragged(name).values.astype(np.float64) for name in "xyz")
    station = events.ragged("station").values.astype(np.int64)
    stations = len(detector.positions)
    if check and station.size and not (station.min() >= 0 and station.max() < stations):
        wrong = int(station[(station < 0) | (station >= stations)][0])
        raise DataError(f"a hit has station {wrong}, the detector has 0 to {stations - 1}")
    event = events.ragged("x").events
    event_number = events.fixed("event") if "event" in events else np.arange(len(events))
    if detector.planar:
        return HitCoordinates(event, station, z, x, y, 0.0, event_number)
    return HitCoordinates(event, station, np.hypot(x, y), np.arctan2(y, x), z, TURN, event_number)


def in_mm(events: Table) -> Table:
    """Convert coordinates to mm. Coordinates without a unit are taken as mm.

    Raises:
        DataError: A column has an unknown unit of length.
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
