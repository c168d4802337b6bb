"""The configuration of the particle-flow recipe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from clew import Section
from clew.recipes.particleflow.event_files import ParticleFlowDataConfig
from clew.recipes.particleflow.generator import ParticleFlowGeneratorConfig
from clew.recipes.particleflow.metrics import ParticleFlowMetricsConfig

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class ParticleFlowNetworkConfig(Section):
    """Size and kind of the network. The defaults are the published size."""

    kind: Literal["graph", "attention", "element"] = "graph"
    """`graph`: convolutions within bins of neighbours. `attention`: every element attends to all elements of its event.
    `element`: every element alone, as a baseline."""
    layers: Count = 3
    """Layers in each of the two stacks (one for the class and charge, one for the momentum)."""
    width: Count = 256
    """Width of the features of an element."""
    distance: Count = 128
    """Width of the features from which distances are computed."""
    bin_size: Count = 640
    """Elements per bin. Elements of one bin exchange messages. An event has as many bins as it needs."""
    codes: Annotated[int, Field(ge=2, multiple_of=2)] = 10
    """Number of hash codes by which elements are sorted. Published: the number of bins of the longest event."""
    identity_width: Count = 256
    """Width of the heads for class and charge."""
    momentum_width: Count = 288
    """Width of the heads for pt, eta, phi and energy."""
    heads: Count = 16
    """Attention heads."""
    correct_pt: bool = False
    """Whether pt, too, is predicted as a correction to that of the element. The published network predicts it directly,
    so it has to learn the momenta of tracks, which jets need to a percent."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.kind == "attention" and self.width % self.heads:
            raise ValueError(f"the width {self.width} must be a multiple of the number of heads, {self.heads}")
        return self


class ParticleFlowLossConfig(Section):
    """Weights of the loss terms."""

    expected_counts: tuple[Positive, Positive, Positive, Positive, Positive, Positive] = (170, 2600, 930, 1250, 7, 2)
    """Expected number of elements per event and class. The weight of a class is one over the square root of its number.
    The defaults are published numbers; that of `none` is the number of remaining elements."""
    charge: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the charge loss. The weight of the class loss is 1."""
    momentum: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the momentum loss."""


class ReconstructionConfig(Section):
    """How particles are made from the outputs of a network."""

    track_momentum: Literal["learned", "measured"] = "learned"
    """The momentum of tracks: `measured` is that of the track, as in rule-based particle flow, and the network only
    determines class and charge. Their energy has the mass of a pion, electron or muon."""
    tower_energy: Literal["learned", "measured"] = "learned"
    """The energy of particles of towers: `measured` is what the tracks that point at the tower leave of its energy, as
    in rule-based particle flow. Sums such as the energy of a jet are then without the bias of a learned energy."""
    min_none_probability: Annotated[float, Field(ge=0, le=1)] = 0.0
    """A tower is no particle only if the network gives that at least this probability. A larger value finds more
    neutral particles and more fake ones. 0: the class of the largest probability."""


class ParticleFlowConfig(Section):
    """The configuration sections of `particleflow`."""

    data: ParticleFlowDataConfig = ParticleFlowDataConfig()
    model: ParticleFlowNetworkConfig = ParticleFlowNetworkConfig()
    losses: ParticleFlowLossConfig = ParticleFlowLossConfig()
    reconstruction: ReconstructionConfig = ReconstructionConfig()
    metrics: ParticleFlowMetricsConfig = ParticleFlowMetricsConfig()
    generator: ParticleFlowGeneratorConfig = ParticleFlowGeneratorConfig()
