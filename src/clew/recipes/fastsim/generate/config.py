"""Which showers `clew data generate fastsim` makes."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from clew import Section

Energy = Annotated[float, Field(ge=0.1, le=1000)]
Angle = Annotated[float, Field(ge=0, le=60)]


class ShowerGeneratorConfig(Section):
    """Single particles that hit the centre of the front of the calorimeter."""

    kind: Literal["parametric", "geant4"] = "parametric"
    """`parametric`: parametrised showers (Grindhammer and Peters), fast. `geant4`: simulated by Geant4
    (`pip install 'clew[geant4]'`), slower by a factor that grows with the energy."""
    particle: Literal["electron", "photon", "pion"] = "electron"
    """The particle. The model of pions is a simple one, and not for `geant4`."""
    pairs: Literal[1, 2] = 1
    """Pairs of 1.4 mm tungsten and 0.3 mm silicon per layer. 2, for `geant4` only: twice as deep."""
    energy: tuple[Energy, Energy] = (1.0, 100.0)
    """Minimum and maximum energy, GeV, of a log-uniform distribution."""
    theta: tuple[Angle, Angle] = (0.0, 0.0)
    """Minimum and maximum angle to the axis, degrees, of a uniform distribution. The azimuth is uniform."""

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        for name in ("energy", "theta"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} must be a range (low, high), got {(low, high)}")
        if self.pairs != 1 and self.kind != "geant4":
            raise ValueError("pairs: parametrised showers have 1 pair per layer; set kind to geant4")
        return self

    @property
    def label(self) -> str:
        """The part of file names that describes the showers."""
        angles = f"-{self.theta[0]:g}to{self.theta[1]:g}deg" if self.theta != (0.0, 0.0) else ""
        pairs = f"-{self.pairs}pairs" if self.pairs != 1 else ""
        return f"{self.kind}-{self.particle}-{self.energy[0]:g}to{self.energy[1]:g}GeV{angles}{pairs}"
