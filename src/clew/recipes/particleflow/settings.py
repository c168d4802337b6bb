"""What the particle-flow recipe can be told."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from clew import Section
from clew.recipes.particleflow.events import Generator
from clew.recipes.particleflow.metrics import Judging
from clew.recipes.particleflow.reading import Data

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


class Network(Section):
    """A network over the elements of an event; the defaults are the published size."""

    kind: Literal["graph", "attention", "element"] = "graph"
    """`graph`: convolutions within bins of neighbours; `attention`: every element sees every other of its event;
    `element`: each by itself, a yardstick."""
    layers: Count = 3
    """In each of two stacks, for identity and for momentum."""
    width: Count = 256
    distance: Count = 128
    """Width of the features that distances are computed from."""
    bin_size: Count = 640
    """Elements that see each other; an event has as many bins as it needs."""
    codes: Annotated[int, Field(ge=2, multiple_of=2)] = 10
    """Hash codes that elements are sorted by; published: the number of bins of the longest event."""
    identity_width: Count = 256
    """Of the heads for class and charge."""
    momentum_width: Count = 288
    """Of the heads for pt, eta, phi and energy."""
    heads: Count = 16
    """Of the attention."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "attention" and self.width % self.heads:
            raise ValueError(f"the width {self.width} is no multiple of the number of heads, {self.heads}")
        return self


class Losses(Section):
    """What is added up."""

    expected: tuple[Positive, Positive, Positive, Positive, Positive, Positive] = (170, 2600, 930, 1250, 7, 2)
    """Elements an event of each class: a class weighs one over the square root of its number. Published ones; of none,
    what is left of the elements."""
    charge: Annotated[float, Field(ge=0)] = 1.0
    momentum: Annotated[float, Field(ge=0)] = 1.0
    """Weights beside that of the class, which is 1."""


class Settings(Section):
    """Sections of `particleflow`."""

    data: Data = Data()
    model: Network = Network()
    losses: Losses = Losses()
    judging: Judging = Judging()
    generator: Generator = Generator()
