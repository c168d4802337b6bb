"""What the recipe can be told."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from clew import Section
from clew.data.transforms import AnyTransform
from clew.recipes.lartpc.columns import SIZE
from clew.recipes.lartpc.generate.config import Generator
from clew.recipes.lartpc.readout import Readout

SMALLEST = 625
"""Rows and columns that four poolings by 5 leave something of."""
Side = Annotated[int, Field(ge=SMALLEST, le=32768)]


class Image(Section):
    """The plane of wires that is looked at."""

    rows: Side = SIZE[0]
    """Wires."""
    columns: Side = SIZE[1]
    """Ticks."""
    most: Annotated[int, Field(ge=1)] = 2_000_000
    """Pixels of an event: one with more is refused, as memory would be."""
    shrink: Annotated[int, Field(ge=1)] = 1
    """Squares of so many by so many pixels become one, their charges added up. What becomes smaller than 625 lies in
    the first corner of an image of 625, the least that the network takes."""

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns in the files."""
        return self.rows, self.columns

    @property
    def seen(self) -> tuple[int, int]:
        """Rows and columns that the network sees."""
        return max(SMALLEST, -(-self.rows // self.shrink)), max(SMALLEST, -(-self.columns // self.shrink))


class Network(Section):
    """The network of the study."""

    kind: Literal["cells", "dense"] = "cells"
    """`cells`: only where there is something to see; `dense`: plain PyTorch on whole images, for comparison."""
    unit: Annotated[float, Field(gt=0)] = 1.0
    """Thousands of electrons that the network sees as 1."""


class Judging(Section):
    """How results are shown."""

    energy_edges: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
    """Bins of the particle's energy, GeV, in which accuracy is shown."""


class Settings(Section):
    """Sections of `lartpc`."""

    image: Image = Image()
    transforms: tuple[AnyTransform, ...] = ()
    """What is done to events before they become samples."""
    model: Network = Network()
    judging: Judging = Judging()
    generator: Generator = Generator()
    readout: Readout = Readout()
