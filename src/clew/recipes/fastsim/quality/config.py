"""How much work the comparison of two sources of showers does."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from clew import Section

Count = Annotated[int, Field(ge=1)]


class QualityConfig(Section):
    """The comparison of generated with true showers."""

    showers: Annotated[int, Field(ge=20)] = 5000
    """Largest number of showers of each source. The time of the classifiers grows with it."""
    seeds: Annotated[int, Field(ge=0)] = 3
    """Number of classifiers for each kind of inputs, each with another split and other weights. 0: no classifiers."""
    epochs: Count = 60
    """Largest number of epochs of a classifier."""
    patience: Count = 10
    """A classifier stops after as many epochs without a better validation AUC."""
