"""What the tracking recipe can be told."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from clew import Section
from clew.recipes.tracking.geometry import Detector
from clew.recipes.tracking.segments import Segments
from clew.transforms import AnyTransform, DropHoles, DropShort, DropSpinning


class Network(Section):
    """The GraphNet; the defaults are the published 102,785 parameters."""

    hidden: Annotated[int, Field(ge=1)] = 128
    iterations: Annotated[int, Field(ge=1)] = 1
    positive_weight: Annotated[float, Field(gt=0)] = 2.3
    """Weight of true edges in the loss."""
    negative_weight: Annotated[float, Field(gt=0)] = 0.555


class Building(Section):
    """From scores to tracks."""

    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Smallest edge score that can become part of a track."""


class Settings(Section):
    """The recipe's sections of the YAML."""

    transforms: tuple[AnyTransform, ...] = (DropSpinning(), DropHoles(), DropShort(stations=3))
    detector: Detector = Detector()
    segments: Segments = Segments()
    model: Network = Network()
    tracks: Building = Building()
