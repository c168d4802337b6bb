"""The data model of clew: tables of events, whose columns have a fixed shape or are ragged. They hold NumPy arrays, no
torch."""

from clew.data.table.column import Column, different_items
from clew.data.table.concatenation import concat
from clew.data.table.ragged import Ragged
from clew.data.table.table import EVENT_COLUMNS, WEIGHT, Field, Table

__all__ = ["EVENT_COLUMNS", "WEIGHT", "Column", "Field", "Ragged", "Table", "concat", "different_items"]
