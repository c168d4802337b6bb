"""Expressions over the columns of a table, as text: `Expression("pt > 20 && abs(eta) < 2.5")`."""

from clew.data.expression.operations import is_true
from clew.data.expression.syntax import Expression

__all__ = ["Expression", "is_true"]
