"""Transforms: pure functions of whole tables that are applied to events before they become samples. They are set in
YAML
or in Python."""

from typing import Annotated

from pydantic import Field

from clew.data.transforms.base import FittedTransform, Transform, fit
from clew.data.transforms.coordinates import Cartesian, Cylindrical
from clew.data.transforms.gather import GatherItems
from clew.data.transforms.missing_columns import made_columns, needed_columns
from clew.data.transforms.reweight import Reweight
from clew.data.transforms.scale import MinMax, Standard
from clew.data.transforms.select import Compute, ExpressionText, SameItems, Select, SelectItems
from clew.data.transforms.tracks import DropFakes, DropHoles, DropShort, DropSpinning, LengthBuckets, StationLimits

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
    | LengthBuckets
    | Select
    | SelectItems
    | Compute
    | Reweight
    | SameItems
    | GatherItems,
    Field(discriminator="kind"),
]
"""Any of the transforms below. In YAML the key `kind` selects one."""

__all__ = [
    "AnyTransform",
    "Cartesian",
    "Compute",
    "Cylindrical",
    "DropFakes",
    "DropHoles",
    "DropShort",
    "DropSpinning",
    "ExpressionText",
    "FittedTransform",
    "GatherItems",
    "LengthBuckets",
    "MinMax",
    "Reweight",
    "SameItems",
    "Select",
    "SelectItems",
    "Standard",
    "StationLimits",
    "Transform",
    "fit",
    "made_columns",
    "needed_columns",
]
