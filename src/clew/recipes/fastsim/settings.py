"""The configuration of the recipe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from clew import Section
from clew.data.transforms import AnyTransform
from clew.recipes.fastsim.generate.config import ShowerGeneratorConfig
from clew.recipes.fastsim.geometry import GeometryConfig
from clew.recipes.fastsim.quality.config import QualityConfig

Count = Annotated[int, Field(ge=1)]


class ShowerModelConfig(Section):
    """The networks."""

    kind: Literal["gan", "flow", "distilled"] = "gan"
    """`gan`: adversarial networks of 3-D convolutions. `flow`: flow matching, slower and truer. `distilled`: a flow
    that needs few steps, trained from a run of `flow`. All layers of the geometry must be equal."""
    latent: Count = 64
    """Number of random numbers per shower, for `gan`."""
    channels: Count = 32
    """Channels of the generator's coarsest grid; the discriminator has as many in its last convolution. For `gan`."""
    energy_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the auxiliary losses of the `gan`: the energy of the particle and the energy of the shower."""
    width: Count = 384
    """Width of the transformer of a `flow`. A distilled flow has the networks of its teacher: set the same numbers."""
    depth: Count = 7
    """Number of blocks of the transformer of a `flow`."""
    heads: Count = 6
    """Attention heads of the transformer of a `flow`. They divide `width`."""
    layer_width: Count = 384
    """Width of the network that draws the energies of layers, of a `flow`."""
    layer_depth: Count = 4
    """Number of its residual blocks."""
    steps: Count | None = None
    """Steps from noise to voxels. Default: 10 of `flow` (two evaluations each), 1 of `distilled` (one evaluation)."""
    teacher: str = ""
    """Run of `flow` from which `distilled` learns."""
    student_width: Count | None = None
    """Width of the student of `distilled`. Default: that of the teacher, whose weights it starts with."""
    student_depth: Count | None = None
    """Number of blocks of the student. Default: that of the teacher."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.kind == "distilled") != bool(self.teacher):
            raise ValueError(
                "kind: distilled needs teacher, and only it: --set model.kind=distilled --set model.teacher=RUN"
            )
        for name in ("width", "student_width"):
            if (getattr(self, name) or self.heads) % self.heads:
                raise ValueError(f"{name} must be a multiple of heads, got {getattr(self, name)} and {self.heads}")
        return self


class FastSimulationConfig(Section):
    """The configuration sections of `fastsim`."""

    geometry: GeometryConfig = GeometryConfig()
    transforms: tuple[AnyTransform, ...] = ()
    """Transforms of events before they become samples."""
    model: ShowerModelConfig = ShowerModelConfig()
    generator: ShowerGeneratorConfig = ShowerGeneratorConfig()
    quality: QualityConfig = QualityConfig()
