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
Share = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
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
    def shrunk_size(self) -> tuple[int, int]:
        """Rows and columns of the part of the input of the network in which charge can be."""
        return -(-self.rows // self.shrink), -(-self.columns // self.shrink)

    @property
    def network_size(self) -> tuple[int, int]:
        """Rows and columns of the input of the network."""
        rows, columns = self.shrunk_size
        return max(MIN_SIDE, rows), max(MIN_SIDE, columns)


class LArTPCAugmentConfig(Section):
    """Random changes of the images in training. Validation, evaluation and prediction see images as they are.

    Every image of every epoch gets its own changes, which depend on `train.seed`, the epoch and the image only.
    """

    enabled: bool = False
    """Whether to change images."""
    shift_wires: Share = 0.05
    """Largest shift across the wires, to both sides, as a fraction of all wires. Charge that leaves is lost."""
    shift_ticks: Share = 0.1
    """Largest shift along the drift, to both sides, as a fraction of all ticks."""
    flip_ticks: Probability = 0.5
    """Probability of a mirror image along the drift: the first tick becomes the last one."""
    charge_scale: Share = 0.05
    """The charges of an image are multiplied by one number, between 1 minus this and 1 plus this."""
    dropped_wires: Share = 0.01
    """Probability that a wire of an image has no charge."""


class LArTPCLossConfig(Section):
    """The loss of the training."""

    label_smoothing: Share = 0.0
    """Probability that is taken from the true class and given to all classes equally. The loss of validations is always
    the one without smoothing, so that trainings can be compared."""


class LArTPCNetworkConfig(Section):
    """The network."""

    kind: Literal["cells", "dense"] = "cells"
    """`cells`: compute only where pixels are. `dense`: plain PyTorch on dense images, for comparison."""
    unit: Annotated[float, Field(gt=0)] = 1.0
    """Charge that the network gets as 1, in thousands of electrons."""
    dropout: Share = 0.0
    """Share of the inputs of each of the two dense layers that are set to zero in training."""


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
    augment: LArTPCAugmentConfig = LArTPCAugmentConfig()
    loss: LArTPCLossConfig = LArTPCLossConfig()
    metrics: LArTPCMetricsConfig = LArTPCMetricsConfig()
    generator: LArTPCGeneratorConfig = LArTPCGeneratorConfig()
    readout: Readout = Readout()
