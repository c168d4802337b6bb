"""The one data model: columns of events, fixed-shape or ragged. NumPy inside, no torch."""

from clew.data.table.ragged import Ragged
from clew.data.table.table import WEIGHT, Column, Field, Table, concat

__all__ = ["WEIGHT", "Column", "Field", "Ragged", "Table", "concat"]
