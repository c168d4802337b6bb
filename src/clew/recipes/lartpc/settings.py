"""What the recipe can be told."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from clew import Section
from clew.recipes.lartpc.columns import SIZE

SMALLEST = 625
"""Wires and ticks that four poolings by 5 leave something of."""
Side = Annotated[int, Field(ge=SMALLEST, le=32768)]


class Image(Section):
    """The plane of wires that is looked at."""

    wires: Side = SIZE[0]
    ticks: Side = SIZE[1]
    most: Annotated[int, Field(ge=1)] = 2_000_000
    """Pixels of an event: one with more is refused, as memory would be."""


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
    model: Network = Network()
    judging: Judging = Judging()
