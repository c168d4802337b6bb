"""What is done to events before they become samples: pure, vectorised over whole tables, set up in YAML."""

from typing import Annotated

from pydantic import Field

from clew.data.transforms.base import Fitted, Transform, fit
from clew.data.transforms.coordinates import Cartesian, Cylindrical
from clew.data.transforms.missing_columns import needs
from clew.data.transforms.reweight import Reweight
from clew.data.transforms.scale import MinMax, Standard
from clew.data.transforms.select import Compute, ExpressionText, SameItems, Select, SelectItems
from clew.data.transforms.tracks import Buckets, DropFakes, DropHoles, DropShort, DropSpinning, StationLimits

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
