"""The configuration of the recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from clew import Section
from clew.data.transforms import AnyTransform
from clew.recipes.fastsim.generate.config import ShowerGeneratorConfig
from clew.recipes.fastsim.geometry import GeometryConfig
from clew.recipes.fastsim.quality.config import QualityConfig

Count = Annotated[int, Field(ge=1)]


class ShowerModelConfig(Section):
    """The networks."""

    kind: Literal["gan"] = "gan"
    """`gan`: adversarial networks of 3-D convolutions. All layers of the geometry must be equal."""
    latent: Count = 64
    """Number of random numbers per shower."""
    channels: Count = 32
    """Channels of the generator's coarsest grid; the discriminator has as many in its last convolution."""
    energy_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the auxiliary losses: the energy of the particle and the energy of the shower."""


class FastSimulationConfig(Section):
    """The configuration sections of `fastsim`."""

    geometry: GeometryConfig = GeometryConfig()
    transforms: tuple[AnyTransform, ...] = ()
    """Transforms of events before they become samples."""
    model: ShowerModelConfig = ShowerModelConfig()
    generator: ShowerGeneratorConfig = ShowerGeneratorConfig()
    quality: QualityConfig = QualityConfig()
