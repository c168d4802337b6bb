"""Which events `clew data generate lartpc` makes."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from clew import Section
from clew.recipes.lartpc.columns import CLASSES

Positive = Annotated[float, Field(gt=0)]


class LArTPCGeneratorConfig(Section):
    """Single particles: charge, kinetic energy, position and direction are random in each event."""

    classes: tuple[str, ...] = CLASSES
    """Classes to generate, of gamma, e, mu, pi, K. Event n has class n modulo their number. Both charges are equally
    likely."""
    energy: tuple[Positive, Positive] = (0.1, 1.5)
    """Minimum and maximum kinetic energy, GeV, of a uniform distribution."""
    opening: Annotated[float, Field(gt=0, le=180)] = 30.0
    """Half-angle of the cone of directions, degrees. Its axis points to increasing wire numbers."""
    start: tuple[float, float] = (0.05, 0.45)
    """Range of wires where particles start, as fractions of the number of wires."""
    depth: tuple[float, float] = (0.2, 0.8)
    """Range of ticks where particles start, as fractions of the number of ticks."""
    height: Positive = 240.0
    """Length of the detector along the wires, cm. Particles start in its middle half."""
    cosmics: Annotated[float, Field(ge=0)] = 0.0
    """Mean number of cosmic muons per event. File names contain it if it is not 0."""

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        for name in ("energy", "start", "depth"):
            low, high = getattr(self, name)
            if not low < high:
                raise ValueError(f"{name} must be a range (low, high), got {(low, high)}")
        if not 0 <= self.start[0] < self.start[1] <= 1 or not 0 <= self.depth[0] < self.depth[1] <= 1:
            raise ValueError("start and depth must be fractions between 0 and 1")
        unknown = [name for name in self.classes if name not in CLASSES]
        if unknown or not self.classes:
            raise ValueError(f"classes must be some of {', '.join(CLASSES)}, got {', '.join(self.classes) or 'none'}")
        if self.energy[1] > 20:
            raise ValueError(f"energy must be at most 20 GeV, where the tables end, got {self.energy[1]:g}")
        return self

    @property
    def label(self) -> str:
        """The part of file names that describes the events."""
        classes = "" if self.classes == CLASSES else f"-{'-'.join(self.classes)}"
        cosmics = f"-cosmics{self.cosmics:g}" if self.cosmics else ""
        return f"{self.energy[0]:g}to{self.energy[1]:g}GeV{classes}{cosmics}"
