"""Parse and evaluate expressions over the columns of a table: `pt > 20 && abs(eta) < 2.5`.

The spelling is that of Python or of ROOT. Comparisons bind tighter than `&` and `|`, as in C. `&&`, `||` and `!` are
`and`, `or` and `not`. Nothing is passed to `eval`: a name that is not in the tables of
`clew.data.expression.operations` is rejected.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from clew.data.expression.operations import BINARY, COMPARISONS, FUNCTIONS, REDUCTIONS, UNARY, all_of, any_of, negated
from clew.data.table import Column, Ragged, Table, different_items
from clew.data.table.ragged import Array
from clew.errors import ConfigError, nearest

Step: TypeAlias = Callable[[Table], Any]
"""A part of an expression: a function of a table that returns a number, one value per event, or one per item
(`Ragged`)."""

_SPLIT = re.compile(r"(&&|\|\||!=|\b(?:and|or)\b|[&|!(),])")
_SPELLED = {"&&": ") and (", "||": ") or (", "!": " +~ ", "(": "((", ")": "))", ",": "),("}
_SPELLED |= {sign: f") {sign} (" for sign in ("&", "|", "and", "or")}
_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_INT64_LIMIT = 1 << 63


class Expression:
    """An expression over columns. It is checked when it is made.

    `len`, `sum`, `min`, `max`, `any`, `all` and `first` reduce a ragged column to one value per event. `min`, `max` and
    `first` of an event without items are NaN, for which no `<`, `>` or `==` is true. All other functions work element
    by element. A value per event is combined with every item of its event. A number counts as true unless it is 0 or
    NaN.

    Args:
        text: The expression.

    Raises:
        ConfigError: the text is not an expression, or uses something that is not allowed.

    Example:
        >>> table = Table({"met": [30.0, 10.0], "pt": Ragged.from_lists([[50.0, 20.0], [40.0]])})
        >>> Expression("met > 20 && sum(pt > 30) >= 1").evaluate(table).tolist()
        [True, False]
        >>> Expression("pt / met").names
        ('pt', 'met')
    """

    def __init__(self, text: str) -> None:
        self.text = text
        with _one_line_errors(text):
            tree = _parse(text)
            self._step = _step(tree)
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        names = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called)
        """The columns that the expression needs."""
        self.names: tuple[str, ...] = tuple(dict.fromkeys(names))
        """The columns it needs."""

    def __reduce__(self) -> tuple[type[Expression], tuple[str]]:
        return Expression, (self.text,)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def evaluate(self, table: Table) -> Column:
        """Return the value for every event, or for every item of the ragged columns in the expression.

        Raises:
            ConfigError: a column is missing, or the columns do not fit together.
        """
        with _one_line_errors(self.text), np.errstate(all="ignore"):
            value = self._step(table)
        if isinstance(value, Ragged):
            return value
        return np.full(len(table), value) if np.ndim(value) == 0 else np.asarray(value)


@contextmanager
def _one_line_errors(text: str) -> Iterator[None]:
    """Turn any error inside the block into one line that begins with the expression."""
    try:
        yield
    except (ConfigError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"'{textwrap.shorten(text, 100)}': {error}") from error
    except (RecursionError, MemoryError) as error:
        raise ConfigError(f"'{text[:40]}...' is nested too deeply") from error


def _parse(text: str) -> ast.expr:
    """Return the syntax tree. Every operand of `&`, `|`, `and` and `or` is put in brackets, so that comparisons bind
    tighter.

    `!` becomes `+~`, which users do not write: it binds as `~` does, but can be distinguished from it.
    """
    try:
        python = "".join(_SPELLED.get(part, part) for part in _SPLIT.split(text))
        return ast.parse(f"({python}\n)", mode="eval").body
    except SyntaxError as error:
        raise ConfigError(f"cannot be understood ({error.msg})") from error


def _step(node: ast.expr) -> Step:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            number = float(value) if isinstance(value, int) and not -_INT64_LIMIT <= value < _INT64_LIMIT else value
            return lambda table: number
        case ast.Name(id=name):
            return lambda table: _column(table, name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return _elementwise(BINARY[type(op)], [left, right])
        case ast.UnaryOp(op=ast.UAdd(), operand=ast.UnaryOp(op=ast.Invert(), operand=inner)):
            return _elementwise(negated, [inner])
        case ast.UnaryOp(op=op, operand=inner):
            return _elementwise(UNARY[type(op)], [inner])
        case ast.BoolOp(op=op, values=values):
            return _elementwise(all_of if isinstance(op, ast.And) else any_of, values)
        case ast.Compare() if all(type(op) in COMPARISONS for op in node.ops):
            return _comparison(node)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _call(name, arguments)
        case ast.Tuple(elts=[]):
            raise ConfigError("a value is missing")
    raise ConfigError(f"'{ast.unparse(node)}' is not allowed; an expression has columns, numbers, operators, functions")


def _comparison(node: ast.Compare) -> Step:
    sides = [node.left, *node.comparators]
    if any(isinstance(op, _ORDER) for op in node.ops) and any(map(_is_not, sides)):
        raise ConfigError("'!' and '~' bind tighter than '<' and '>'; put the comparison in brackets, as !(x > 1)")
    kinds = [COMPARISONS[type(op)] for op in node.ops]

    def chain(*values: Any) -> Any:
        return all_of(*(kind(*pair) for kind, pair in zip(kinds, pairwise(values), strict=True)))

    return _elementwise(chain, sides)


def _is_not(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd) else node
    return isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.Invert)


def _call(name: str, arguments: Sequence[ast.expr]) -> Step:
    if name not in FUNCTIONS and name not in REDUCTIONS:
        raise ConfigError(f"no function '{name}'{nearest(name, [*FUNCTIONS, *REDUCTIONS])}")
    argument_count, function = FUNCTIONS[name] if name in FUNCTIONS else (1, REDUCTIONS[name])
    if len(arguments) != argument_count:
        hint = f"; {name}imum takes two" if name in ("min", "max") else ""
        raise ConfigError(
            f"{name} takes {argument_count} argument{'s' * (argument_count > 1)}, not {len(arguments)}{hint}"
        )
    return _elementwise(function, arguments) if name in FUNCTIONS else _reduction(name, arguments[0])


def _reduction(name: str, node: ast.expr) -> Step:
    """Reduce items to events. `len` accepts any column: its items need not be single numbers."""
    bare = name == "len" and isinstance(node, ast.Name)
    inner, text = (lambda table: _find(table, ast.unparse(node))) if bare else _step(node), ast.unparse(node)

    def run(table: Table) -> Array:
        value = inner(table)
        if not isinstance(value, Ragged):
            raise ConfigError(f"{name} needs a ragged column, '{text}' has one value per event")
        return REDUCTIONS[name](value)

    return run


def _find(table: Table, name: str) -> Column:
    if name not in table:
        raise ConfigError(f"no column '{name}'{nearest(name, table)}")
    return table[name]


def _column(table: Table, name: str) -> Any:
    """Return the numbers of a column. Integers become int64, so that small ones do not overflow."""
    column = _find(table, name)
    values = column.values if isinstance(column, Ragged) else column
    if values.ndim != 1:
        what = "item" if isinstance(column, Ragged) else "event"
        raise ConfigError(f"column '{name}' holds arrays of {values.shape[1:]} per {what}, not single numbers")
    if values.dtype.kind in "iu" and values.dtype != np.uint64:
        values = values.astype(np.int64, copy=False)
    return column.share(values) if isinstance(column, Ragged) else values


def _elementwise(function: Callable[..., Any], nodes: Sequence[ast.expr]) -> Step:
    """Apply a function to values, to events, or to the items of ragged columns that describe the same items."""
    steps = [_step(node) for node in nodes]

    def run(table: Table) -> Any:
        values = [step(table) for step in steps]
        ragged = [(node, value) for node, value in zip(nodes, values, strict=True) if isinstance(value, Ragged)]
        if not ragged:
            return function(*values)
        first, like = ragged[0]
        for node, value in ragged:
            if value.offsets is not like.offsets:
                raise ConfigError(different_items(ast.unparse(first), like, ast.unparse(node), value))
        return like.share(function(*(_spread(value, like) for value in values)))

    return run


def _spread(value: Any, like: Ragged) -> Any:
    if isinstance(value, Ragged):
        return value.values
    return np.repeat(value, like.lengths) if np.ndim(value) else value
