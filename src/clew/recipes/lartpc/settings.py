"""The configuration of the recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from clew import Section
from clew.data.transforms import AnyTransform
from clew.recipes.lartpc.columns import SIZE
from clew.recipes.lartpc.generate.config import LArTPCGeneratorConfig
from clew.recipes.lartpc.readout import Readout

MIN_SIDE = 625
"""Minimum number of rows and columns: four poolings by 5 reduce it to 1."""
Side = Annotated[int, Field(ge=MIN_SIDE, le=32768)]


class ImageConfig(Section):
    """Size of the images."""

    rows: Side = SIZE[0]
    """Wires."""
    columns: Side = SIZE[1]
    """Ticks."""
    max_pixels: Annotated[int, Field(ge=1)] = 2_000_000
    """Maximum number of pixels per event, which limits the memory. Events with more are an error."""
    shrink: Annotated[int, Field(ge=1)] = 1
    """Squares of `shrink` x `shrink` pixels become one pixel, with the sum of their charges. A shrunk image of fewer
    than 625 rows or columns is placed in the first corner of an image of 625, the minimum of the network."""

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns in the files."""
        return self.rows, self.columns

    @property
    def network_size(self) -> tuple[int, int]:
        """Rows and columns of the input of the network."""
        return max(MIN_SIDE, -(-self.rows // self.shrink)), max(MIN_SIDE, -(-self.columns // self.shrink))


class LArTPCNetworkConfig(Section):
    """The network."""

    kind: Literal["cells", "dense"] = "cells"
    """`cells`: compute only where pixels are. `dense`: plain PyTorch on dense images, for comparison."""
    unit: Annotated[float, Field(gt=0)] = 1.0
    """Charge that the network gets as 1, in thousands of electrons."""


class LArTPCMetricsConfig(Section):
    """Bins of the figures."""

    energy_edges: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
    """Bins of the energy of the particle in which the accuracy is shown, GeV."""


class LArTPCConfig(Section):
    """The configuration sections of `lartpc`."""

    image: ImageConfig = ImageConfig()
    transforms: tuple[AnyTransform, ...] = ()
    """Transforms of events before they become samples."""
    model: LArTPCNetworkConfig = LArTPCNetworkConfig()
    metrics: LArTPCMetricsConfig = LArTPCMetricsConfig()
    generator: LArTPCGeneratorConfig = LArTPCGeneratorConfig()
    readout: Readout = Readout()
