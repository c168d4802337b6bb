"""Arithmetic and conditions over a table's columns, as text: `Expression("pt > 20 && abs(eta) < 2.5")`."""

from clew.data.expression.operations import truth
from clew.data.expression.syntax import Expression

__all__ = ["Expression", "truth"]
