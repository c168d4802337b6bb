"""The operators and functions of expressions. They are functions of NumPy, with the rules of C where those of NumPy
would
surprise a physicist."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from clew.data.table import Ragged
from clew.data.table.ragged import Array
from clew.errors import ConfigError


def is_true(values: Array) -> Array:
    """Return where numbers are neither 0 nor NaN, or where conditions are true."""
    return values if np.asarray(values).dtype == np.bool_ else np.asarray((values != 0) & (values == values))


def _numeric(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that counts a condition as 0 or 1, as C does. NumPy would treat `+` of conditions as `or`."""

    def run(*values: Any) -> Any:
        return function(*(np.int64(1) * v if np.asarray(v).dtype == np.bool_ else v for v in values))

    return run


def _power(base: Any, exponent: Any) -> Any:
    """Return integers only for an integer column with a plain exponent that is not negative."""
    integers = all(np.asarray(value).dtype.kind in "iu" for value in (base, exponent))
    scalar_exponent = np.ndim(base) and not np.ndim(exponent) and exponent >= 0
    return np.float_power(base, exponent) if integers and not scalar_exponent else np.power(base, exponent)


def _bits(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `&` or `|`: of conditions, or of the bits of integers."""

    def run(*values: Any) -> Any:
        if any(np.asarray(value).dtype.kind not in "biu" for value in values):
            raise ConfigError("& and | take conditions or integers; use && and || (and, or) for other numbers")
        return function(*values)

    return run


def negated(value: Any) -> Any:
    return np.logical_not(is_true(value))


def _invert(value: Any) -> Any:
    if np.asarray(value).dtype != np.bool_:
        raise ConfigError("~ takes a condition; for numbers use !, not or == 0")
    return np.logical_not(value)


def all_of(*values: Any) -> Any:
    return functools.reduce(np.logical_and, map(is_true, values))


def any_of(*values: Any) -> Any:
    return functools.reduce(np.logical_or, map(is_true, values))


def _where(condition: Any, yes: Any, no: Any) -> Any:
    return np.where(is_true(condition), yes, no)


def _reduced(operation: np.ufunc, values: Array, column: Ragged, empty: Any) -> Array:
    """Return one value per event. Events without items get `empty`, because `reduceat` does not handle them."""
    filled = column.lengths > 0
    result = np.full(len(column), empty, dtype=values.dtype)
    result[filled] = operation.reduceat(values, column.offsets[:-1][filled])
    return result


def _with_nan(column: Ragged) -> Array:
    values = column.values
    return values if values.dtype.kind in "fc" else values.astype(np.float64)


def _sum(column: Ragged) -> Array:
    kind = column.values.dtype.kind
    wide = np.int64 if kind == "b" else np.float64 if kind == "f" else column.values.dtype
    return _reduced(np.add, column.values.astype(wide), column, 0)


def _min(column: Ragged) -> Array:
    return _reduced(np.minimum, _with_nan(column), column, np.nan)


def _max(column: Ragged) -> Array:
    return _reduced(np.maximum, _with_nan(column), column, np.nan)


def _any(column: Ragged) -> Array:
    return _reduced(np.logical_or, is_true(column.values), column, False)


def _all(column: Ragged) -> Array:
    return _reduced(np.logical_and, is_true(column.values), column, True)


def _first(column: Ragged) -> Array:
    values, filled = _with_nan(column), column.lengths > 0
    result = np.full(len(column), np.nan, dtype=values.dtype)
    result[filled] = values[column.offsets[:-1][filled]]
    return result


def _len(column: Ragged) -> Array:
    return column.lengths


UNARY: dict[type[ast.unaryop], Callable[..., Any]] = {
    ast.UAdd: _numeric(np.positive),
    ast.USub: _numeric(np.negative),
    ast.Invert: _invert,
    ast.Not: negated,
}
BINARY: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: _numeric(np.add),
    ast.Sub: _numeric(np.subtract),
    ast.Mult: _numeric(np.multiply),
    ast.Div: _numeric(np.true_divide),
    ast.FloorDiv: _numeric(np.floor_divide),
    ast.Mod: _numeric(np.remainder),
    ast.Pow: _numeric(_power),
    ast.BitAnd: _bits(np.bitwise_and),
    ast.BitOr: _bits(np.bitwise_or),
}
COMPARISONS: dict[type[ast.cmpop], Callable[..., Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_PLAIN = ("sqrt", "log", "log10", "exp", "sin", "cos", "tan", "sinh", "cosh", "tanh", "isfinite")
FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "abs": (1, _numeric(np.absolute)),
    **{name: (1, _numeric(getattr(np, name))) for name in _PLAIN},
    **{name: (2, _numeric(getattr(np, name))) for name in ("arctan2", "minimum", "maximum")},
    "where": (3, _where),
}
REDUCTIONS: dict[str, Callable[[Ragged], Array]] = {
    "len": _len,
    "sum": _sum,
    "min": _min,
    "max": _max,
    "any": _any,
    "all": _all,
    "first": _first,
}
