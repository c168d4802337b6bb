"""What the jet recipes can be told."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from clew import Section
from clew.data.transforms import AnyTransform, ExpressionText, Reweight
from clew.recipes.jets.inputs import Data
from clew.recipes.jets.metrics import Judging
from clew.recipes.jets.shower import Generator

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]

KINEMATICS = (
    "part_deta",
    "part_dphi",
    "(sqrt(part_deta**2 + part_dphi**2) - 0.2) * 4",
    "(log(part_pt) - 1.7) * 0.7",
    "(log(part_energy) - 2.0) * 0.7",
    "(log(part_pt / jet_pt) + 4.7) * 0.7",
    "(log(part_energy / jet_energy) + 4.7) * 0.7",
)
SPECIES = (
    "part_charge",
    "abs(part_pid) == 11",
    "abs(part_pid) == 13",
    "part_pid == 22",
    "abs(part_pid) > 100 && part_charge != 0",
    "abs(part_pid) > 100 && part_charge == 0",
)
SHAPES = (
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


class Tagging(Section):
    """What all jet recipes have."""

    data: Data = Data()
    reweight: Reweight | None = None
    """Weights that make classes alike in number and in spectra; in the loss and in all figures."""
    transforms: tuple[AnyTransform, ...] = ()
    """What else is done to jets, after all of `data`."""
    judging: Judging = Judging()
    generator: Generator = Generator()

    @model_validator(mode="after")
    def _classes(self) -> Self:
        self.judging.check(self.data.classes)
        return self


class Constituents(Section):
    """What a sequence is made of."""

    inputs: tuple[ExpressionText, ...] = (*KINEMATICS, *SPECIES)
    """One number a constituent each; they should be of order one."""
    order: ExpressionText | None = "part_pt"
    """The largest comes first; without it, constituents stay as they are in the file."""
    most: Count = 128
    """Constituents of a jet that are kept: the first ones."""


class SequenceNetwork(Section):
    """A network over constituents."""

    kind: Literal["gru", "conv", "transformer"] = "gru"
    width: Count = 64
    layers: Count = 2
    heads: Count = 4
    """Of the transformer."""
    kernel: Count = 5
    """Of the convolution: neighbours that are seen together; odd."""
    dropout: Share = 0.0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "transformer" and self.width % self.heads:
            raise ValueError(f"the width {self.width} is no multiple of the number of heads, {self.heads}")
        if self.kind == "conv" and self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, so that a constituent is in its middle, not {self.kernel}")
        return self


class SequenceSettings(Tagging):
    """Sections of `jets`."""

    constituents: Constituents = Constituents()
    model: SequenceNetwork = SequenceNetwork()


class Features(Section):
    """What a jet is described by."""

    inputs: tuple[ExpressionText, ...] = SHAPES
    """One number a jet each; they are brought to mean 0 and standard deviation 1."""


class FeatureNetwork(Section):
    """A perceptron."""

    width: Count = 64
    layers: Count = 3
    dropout: Share = 0.0


class FeatureSettings(Tagging):
    """Sections of `jetfeatures`."""

    features: Features = Features()
    model: FeatureNetwork = FeatureNetwork()


class Images(Section):
    """How constituents become an image; files that hold images are taken as they are."""

    pixels: Count = 30
    """Along each side."""
    width: Annotated[float, Field(gt=0)] = 1.6
    """Of the image, in eta and in phi."""
    rotate: bool = True
    """Whether the axis of the largest spread points up, and the harder half is up and right."""


class ImageNetwork(Section):
    """A network over images."""

    kind: Literal["cnn", "cloud"] = "cnn"
    """`cnn`: convolutions; `cloud`: the filled pixels as a set, with shapes of the whole: for few thousand images."""
    width: Count = 16
    """Channels of the first convolution, doubled at each pooling; a quarter of those of a pixel in a cloud."""
    most: Count = 64
    """Pixels of a cloud: the hardest."""
    dropout: Share = 0.1
    augment: bool = True
    """Whether training jets are mirrored and turned at random (by right angles, or any in a cloud, which is smeared
    too): a jet has no up and no left."""


class ImageSettings(Tagging):
    """Sections of `jetimages`."""

    images: Images = Images()
    model: ImageNetwork = ImageNetwork()
