"""Expressions of weaver: Python over columns as awkward arrays, as `np.hypot(part_px, part_py)`.

Before an expression is evaluated, every part of it is compared with a list of what is allowed. So a configuration from
elsewhere can compute, but not open files or start programs.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType, SimpleNamespace
from typing import Any

import awkward as ak
import numpy as np

from clew.data.table import Table
from clew.errors import ConfigError, nearest
from clew.models.weaver.functions import HELPERS, METHODS, NAMESPACES

_ALLOWED = (
    ast.Expression,
    ast.BoolOp,
    ast.boolop,
    ast.UnaryOp,
    ast.unaryop,
    ast.BinOp,
    ast.operator,
    ast.Compare,
    ast.cmpop,
    ast.Call,
    ast.keyword,
    ast.Name,
    ast.expr_context,
    ast.Attribute,
    ast.Subscript,
    ast.Slice,
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.IfExp,
)
_UNKNOWN_AT_INIT = {"aux_training_"}


def check(text: str) -> str:
    """Return an expression if it is allowed.

    Raises:
        ConfigError: It is not an expression, or uses something that is not allowed.
    """
    _compiled(text)
    return text


def names_in(text: str) -> tuple[str, ...]:
    """Return the columns that an expression uses, in the order of their first use.

    Raises:
        ConfigError: The expression is not allowed.
    """
    return _compiled(text)[1]


def raw_columns(names: Iterator[str] | tuple[str, ...], expressions: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns of the input files from which some columns are computed.

    Args:
        names: The columns, computed or not.
        expressions: Expressions of computed columns by name.

    Raises:
        ConfigError: A column is computed from itself.
    """
    columns: dict[str, None] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ConfigError(f"the variable '{name}' is computed from itself ({' from '.join((*path, name))})")
        if name not in expressions:
            columns[name] = None
            return
        for inner in names_in(expressions[name]):
            visit(inner, (*path, name))

    for each in names:
        visit(each, ())
    return tuple(columns)


class ComputedColumns(Mapping[str, Any]):
    """Columns of a table as awkward arrays, and columns that are computed from them when they are used.

    Args:
        events: The table.
        expressions: Expressions of computed columns by name.
    """

    def __init__(self, events: Table, expressions: Mapping[str, str]) -> None:
        self._events = events.to_awkward()
        self._expressions = expressions
        self._count = len(events)
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            if name in self._expressions:
                self._values[name] = self.evaluate(self._expressions[name], name)
            elif name in self._events.fields:
                self._values[name] = self._events[name]
            else:
                raise KeyError(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._events.fields, *self._expressions]))

    def __len__(self) -> int:
        return len(set(self))

    def evaluate(self, text: str, what: str) -> Any:
        """Return the value of an expression, one entry per event.

        Args:
            text: The expression.
            what: What it is, for messages.

        Raises:
            ConfigError: It cannot be computed from these columns.
        """
        code, _ = _compiled(text)
        try:
            with np.errstate(all="ignore"):
                value = eval(code, {"__builtins__": {}, **NAMESPACES, **HELPERS}, self)
        except ConfigError:
            raise
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ConfigError(f"{what} = '{_short(text)}': {reason}") from error
        is_array = isinstance(value, (ak.Array, np.ndarray))
        return value if is_array else np.full(self._count, value)


@lru_cache(maxsize=4096)
def _compiled(text: str) -> tuple[CodeType, tuple[str, ...]]:
    try:
        tree = ast.parse(" ".join(text.split()), mode="eval")
        code = compile(tree, "<expression>", "eval")  # not executed before it is checked
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"'{_short(text)}' is not an expression of Python") from error
    try:
        _check_tree(tree)
    except ConfigError as error:
        raise ConfigError(f"'{_short(text)}': {error}") from error
    nodes = sorted((node for node in ast.walk(tree) if isinstance(node, ast.Name)), key=lambda node: node.col_offset)
    columns = dict.fromkeys(node.id for node in nodes if node.id not in NAMESPACES and node.id not in HELPERS)
    return code, tuple(columns)


def _check_tree(tree: ast.Expression) -> None:
    called = {id(node.func): node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ConfigError(f"'{ast.unparse(node)}' is not allowed; use columns, numbers, operators and functions")
        if isinstance(node, ast.Attribute):
            _check_attribute(node)
        if isinstance(node, ast.Name):
            _check_name(node.id, is_called=id(node) in called)


def _check_attribute(node: ast.Attribute) -> None:
    inner = node.value
    inside: Any = NAMESPACES.get(inner.id) if isinstance(inner, ast.Name) else None
    if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):  # awkward.JaggedArray.ones_like
        inside = getattr(NAMESPACES.get(inner.value.id), inner.attr, None)
    if isinstance(inside, SimpleNamespace):
        if node.attr not in vars(inside):
            raise ConfigError(f"no function '{ast.unparse(node)}'{nearest(node.attr, vars(inside))}")
    elif node.attr not in METHODS:
        raise ConfigError(f"'.{node.attr}' is not allowed{nearest(node.attr, METHODS)}")


def _check_name(name: str, *, is_called: bool) -> None:
    if is_called and name not in HELPERS:
        hint = nearest(name, HELPERS)
        raise ConfigError(f"no function '{name}'{hint}; write it with functions of np, ak or math")
    if (name.startswith("_") and name not in HELPERS) or name in _UNKNOWN_AT_INIT:
        raise ConfigError(f"'{name}' of weaver has no counterpart")


def _short(text: str) -> str:
    return textwrap.shorten(text, 100)
