"""The one data model: columns of events, fixed-shape or ragged. NumPy inside, no torch."""

from clew.table.ragged import Ragged
from clew.table.table import WEIGHT, Column, Field, Table, concat

__all__ = ["WEIGHT", "Column", "Field", "Ragged", "Table", "concat"]
