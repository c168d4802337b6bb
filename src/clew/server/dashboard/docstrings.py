"""What stands under a setting in its class: the help of forms. Read from the source, and only when a form is shown."""

from __future__ import annotations

import ast
import functools
import inspect
import sys

from pydantic import BaseModel


def of_fields(model: type[BaseModel]) -> dict[str, str]:
    """The docstring of each field that has one, those it inherits included."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            found |= _module(each.__module__).get(each.__qualname__, {})
    return {name: text for name, text in found.items() if name in model.model_fields}


@functools.cache
def _module(name: str) -> dict[str, dict[str, str]]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError, KeyError):  # made at run time: it has no source
        return {}
    return {node.name: _class(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _class(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = inspect.cleandoc(str(text.value.value))
    return found
