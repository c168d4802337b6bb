"""Docstrings of settings, shown as help in forms. They are read from the source code when a form is shown."""

from __future__ import annotations

import ast
import functools
import inspect
import sys

from pydantic import BaseModel


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring of each field that has one, inherited fields included."""
    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            docs |= _module_docs(base.__module__).get(base.__qualname__, {})
    return {name: text for name, text in docs.items() if name in model.model_fields}


@functools.cache
def _module_docs(name: str) -> dict[str, dict[str, str]]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError, KeyError):  # created at run time, without source
        return {}
    return {node.name: _class_docs(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _class_docs(node: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            docs[field.target.id] = inspect.cleandoc(str(text.value.value))
    return docs
