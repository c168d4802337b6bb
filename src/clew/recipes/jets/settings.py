"""Settings of the jet recipes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from clew import Section
from clew.data.transforms import AnyTransform, ExpressionText, Reweight
from clew.recipes.jets.generator import JetGeneratorConfig
from clew.recipes.jets.inputs import JetDataConfig
from clew.recipes.jets.metrics import JetsMetricsConfig

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]
Place = Annotated[int, Field(ge=0)]

KINEMATIC_INPUTS = (
    "part_deta",
    "part_dphi",
    "(sqrt(part_deta**2 + part_dphi**2) - 0.2) * 4",
    "(log(part_pt) - 1.7) * 0.7",
    "(log(part_energy) - 2.0) * 0.7",
    "(log(part_pt / jet_pt) + 4.7) * 0.7",
    "(log(part_energy / jet_energy) + 4.7) * 0.7",
)
SPECIES_INPUTS = (
    "part_charge",
    "abs(part_pid) == 11",
    "abs(part_pid) == 13",
    "part_pid == 22",
    "abs(part_pid) > 100 && part_charge != 0",
    "abs(part_pid) > 100 && part_charge == 0",
)
SHAPE_INPUTS = (
    "log(jet_pt)",
    "log(jet_mass + 1)",
    "jet_mass / jet_pt",
    "len(part_pt)",
    "sum(part_charge != 0)",
    "sum(part_pt * sqrt(part_deta**2 + part_dphi**2)) / jet_pt",
    "sum(part_pt * (part_deta**2 + part_dphi**2)) / jet_pt",
    "sum(part_pt * (sqrt(part_deta**2 + part_dphi**2) < 0.1)) / jet_pt",
    "sum(part_pt * (sqrt(part_deta**2 + part_dphi**2) < 0.2)) / jet_pt",
    "sum(part_pt * (sqrt(part_deta**2 + part_dphi**2) < 0.4)) / jet_pt",
    "sqrt(sum(part_pt**2)) / jet_pt",
    "where(len(part_pt) > 0, max(part_pt), 0) / jet_pt",
    "sum(part_charge * sqrt(part_pt)) / sqrt(jet_pt)",
    "sum(part_pt * (part_charge != 0)) / jet_pt",
    "sum(part_pt * (part_pid == 22)) / jet_pt",
)


class JetTaggingConfig(Section):
    """Settings of all jet recipes."""

    data: JetDataConfig = JetDataConfig()
    reweight: Reweight | None = None
    """Event weights that give all classes the same sum of weights and the same spectra. Used in the loss and all
    metrics."""
    transforms: tuple[AnyTransform, ...] = ()
    """More transforms, applied after those of `data`."""
    metrics: JetsMetricsConfig = JetsMetricsConfig()
    generator: JetGeneratorConfig = JetGeneratorConfig()

    @model_validator(mode="after")
    def _classes(self) -> Self:
        self.metrics.check(self.data.classes)
        return self


class ConstituentsConfig(Section):
    """The sequence of constituents of a jet."""

    inputs: tuple[ExpressionText, ...] = (*KINEMATIC_INPUTS, *SPECIES_INPUTS)
    """Expressions with one value per constituent. Values should be of order one."""
    order: ExpressionText | None = "part_pt"
    """Constituents are sorted by this expression, the largest first. null keeps the order of the file."""
    max_constituents: Count = 128
    """Largest number of constituents per jet; the first ones are used."""


class JetsNetworkConfig(Section):
    """A network over constituents."""

    kind: Literal["gru", "conv", "transformer", "edgeconv", "particlenet"] = "gru"
    """The network: recurrent, convolutions along the sequence, attention, fast convolutions over the edges to nearest
    neighbours, or ParticleNet. `particlenet` has batch normalisation: set `train.loading.bucket: null`."""
    width: Count = 64
    """Width of the hidden layers; of the first block for `particlenet`, whose width doubles from block to block."""
    layers: Count = 2
    """Number of hidden layers."""
    heads: Count = 4
    """Attention heads (transformer)."""
    kernel: Count = 5
    """Kernel size (convolution); odd."""
    neighbours: Count = 8
    """Nearest neighbours of every constituent (edgeconv, particlenet)."""
    pairs: Annotated[int, Field(ge=0)] = 0
    """Width of a network over pairs of constituents, whose output is added to attention (transformer), as in the
    Particle Transformer. 0: none."""
    coordinates: tuple[Place, Place] = (0, 1)
    """The inputs that are eta and phi, by their number, from 0: for nearest neighbours and pairs."""
    momentum: Place = 3
    """The input that is a logarithm of pT, by its number, from 0: for pairs."""
    dropout: Share = 0.0
    """Share of hidden values that are set to zero in training."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "transformer" and self.width % self.heads:
            raise ValueError(f"the width {self.width} is no multiple of the number of heads ({self.heads})")
        if self.kind == "conv" and self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, so that a constituent is in its centre, got {self.kernel}")
        return self

    @property
    def named_inputs(self) -> tuple[int, ...]:
        """The inputs that the network uses by their number."""
        if self.kind in ("edgeconv", "particlenet"):
            return self.coordinates
        return (*self.coordinates, self.momentum) if self.kind == "transformer" and self.pairs else ()


class JetsConfig(JetTaggingConfig):
    """Settings of the recipe `jets`."""

    constituents: ConstituentsConfig = ConstituentsConfig()
    model: JetsNetworkConfig = JetsNetworkConfig()

    @model_validator(mode="after")
    def _inputs(self) -> Self:
        count = len(self.constituents.inputs)
        model: Any = self.model
        named = model.named_inputs if isinstance(model, JetsNetworkConfig) else ()  # a recipe may have another network
        if any(place >= count for place in named):
            raise ValueError(
                f"model.coordinates and model.momentum are numbers of constituents.inputs, from 0 to {count - 1}, "
                f"got {list(named)}"
            )
        return self


class FeaturesConfig(Section):
    """The features of a jet."""

    inputs: tuple[ExpressionText, ...] = SHAPE_INPUTS
    """Expressions with one value per jet. Values are scaled to mean 0 and standard deviation 1."""


class JetFeaturesNetworkConfig(Section):
    """A multilayer perceptron."""

    width: Count = 64
    """Width of the hidden layers."""
    layers: Count = 3
    """Number of hidden layers."""
    dropout: Share = 0.0
    """Share of hidden values that are set to zero in training."""


class JetFeaturesConfig(JetTaggingConfig):
    """Settings of the recipe `jetfeatures`."""

    features: FeaturesConfig = FeaturesConfig()
    model: JetFeaturesNetworkConfig = JetFeaturesNetworkConfig()


class JetImageConfig(Section):
    """How constituents become an image. Images that are read from files are not changed."""

    pixels: Count = 30
    """Pixels along each side."""
    width: Annotated[float, Field(gt=0)] = 1.6
    """Width of the image in eta and in phi."""
    rotate: bool = True
    """Whether images are rotated (the axis of the largest spread points up) and mirrored (more pT is up and right)."""


class JetImagesNetworkConfig(Section):
    """A network over images."""

    kind: Literal["cnn", "cloud"] = "cnn"
    """`cnn`: convolutions; `cloud`: the filled pixels as a set, with shape variables: for a few thousand images."""
    width: Count = 16
    """Channels of the first convolution, doubled at each pooling. `cloud` uses four times this width per pixel."""
    max_pixels: Count = 64
    """Largest number of pixels of a cloud; those with the highest values are used."""
    dropout: Share = 0.1
    """Share of hidden values that are set to zero in training."""
    augment: bool = True
    """Whether training jets are mirrored and rotated at random: by right angles, or by any angle for `cloud`, which
    also smears them."""


class JetImagesConfig(JetTaggingConfig):
    """Settings of the recipe `jetimages`."""

    images: JetImageConfig = JetImageConfig()
    model: JetImagesNetworkConfig = JetImagesNetworkConfig()
