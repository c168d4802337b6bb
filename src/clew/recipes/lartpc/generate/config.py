"""What `clew data generate lartpc` makes."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from clew import Section
from clew.recipes.lartpc.columns import CLASSES

Positive = Annotated[float, Field(gt=0)]


class Generator(Section):
    """Single particles: kind, kinetic energy, place and direction drawn for each event."""

    classes: tuple[str, ...] = CLASSES
    """Which of gamma, e, mu, pi, K there are: event n is of class n modulo their number. Both charges equally."""
    energy: tuple[Positive, Positive] = (0.1, 1.5)
    """GeV, kinetic: lowest and highest; all between are equally likely."""
    opening: Annotated[float, Field(gt=0, le=180)] = 30.0
    """Degrees: directions fill a cone of this half-angle about the one in which wires count up."""
    start: tuple[float, float] = (0.05, 0.45)
    """Shares of the wires between which particles start."""
    depth: tuple[float, float] = (0.2, 0.8)
    """Shares of the ticks between which particles start."""
    height: Positive = 240.0
    """cm along the wires; particles start in the middle half, what is outside is not seen."""
    cosmics: Annotated[float, Field(ge=0)] = 0.0
    """Muons from above laid over each event, on average; event files then say so in their names."""

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        for name in ("energy", "start", "depth"):
            low, high = getattr(self, name)
            if not low < high:
                raise ValueError(f"{name} must be a range (low, high), got {(low, high)}")
        if not 0 <= self.start[0] < self.start[1] <= 1 or not 0 <= self.depth[0] < self.depth[1] <= 1:
            raise ValueError("start and depth are shares, between 0 and 1")
        unknown = [name for name in self.classes if name not in CLASSES]
        if unknown or not self.classes:
            raise ValueError(f"classes must be some of {', '.join(CLASSES)}, got {', '.join(self.classes) or 'none'}")
        if self.energy[1] > 20:
            raise ValueError(f"energy: tables end at 20 GeV, got {self.energy[1]:g}")
        return self

    @property
    def label(self) -> str:
        """For the names of files."""
        some = "" if self.classes == CLASSES else f"-{'-'.join(self.classes)}"
        dust = f"-cosmics{self.cosmics:g}" if self.cosmics else ""
        return f"{self.energy[0]:g}to{self.energy[1]:g}GeV{some}{dust}"
