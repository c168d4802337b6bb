"""What is done to events before they become samples: pure, vectorised over whole tables, set up in YAML."""

from typing import Annotated

from pydantic import Field

from clew.transforms.absent import needs
from clew.transforms.base import Fitted, Transform, fit
from clew.transforms.coordinates import Cartesian, Cylindrical
from clew.transforms.reweight import Reweight
from clew.transforms.scale import MinMax, Standard
from clew.transforms.select import Compute, ExpressionText, SameItems, Select, SelectItems
from clew.transforms.tracks import Buckets, DropFakes, DropHoles, DropShort, DropSpinning, StationLimits

AnyTransform = Annotated[
    MinMax
    | Standard
    | Cylindrical
    | Cartesian
    | DropShort
    | DropSpinning
    | DropHoles
    | DropFakes
    | StationLimits
    | Buckets
    | Select
    | SelectItems
    | Compute
    | Reweight
    | SameItems,
    Field(discriminator="kind"),
]
"""Any of the transforms below, told apart by `kind` in YAML."""

__all__ = [
    "AnyTransform",
    "Buckets",
    "Cartesian",
    "Compute",
    "Cylindrical",
    "DropFakes",
    "DropHoles",
    "DropShort",
    "DropSpinning",
    "ExpressionText",
    "Fitted",
    "MinMax",
    "Reweight",
    "SameItems",
    "Select",
    "SelectItems",
    "Standard",
    "StationLimits",
    "Transform",
    "fit",
    "needs",
]
