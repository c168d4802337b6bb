"""What a stage's result depends on, written down so that two equal descriptions mean equal results.

Code counts by what it does: the source of a method and of everything it uses within the recipe's own package (and
clew's readers, transforms and expressions), without comments, docstrings and layout. Settings count by what is read:
the sections of `self.config` that those methods mention.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import json
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from clew.core.config import Section, to_data
from clew.data.readers import Reader
from clew.data.transforms import Transform
from clew.recipe import Recipe

Parts = dict[str, Any]
_WITHIN_CLEW = ("clew.recipes.", "clew.readers", "clew.transforms", "clew.data.expression")


def key_of(parts: Any) -> str:
    """A hash of plain JSON data, the same for the same content whatever the order of keys."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, allow_nan=False).encode()).hexdigest()


def stage_parts(recipe: Recipe, transforms: Sequence[Transform], readers: Iterable[Reader] = ()) -> dict[str, Parts]:
    """For each stage what it depends on, besides the stage before it. `readers` are those that `read` uses."""
    used = {type(reader).__qualname__: reader for reader in readers}
    return {
        "read": {
            **_method_parts(recipe, "read"),
            "readers": {name: to_data(reader) for name, reader in sorted(used.items())},
            "readers_code": code_of([type(reader) for reader in used.values()], "clew.readers"),
        },
        "transforms": {
            "version": recipe.version,
            "settings": [{"kind": type(t).__qualname__, **to_data(t)} for t in transforms],
            "code": code_of([type(transform) for transform in transforms], _package(type(recipe))),
        },
        "prepare": _method_parts(recipe, "prepare"),
    }


def _method_parts(recipe: Recipe, name: str) -> Parts:
    kind = type(recipe)
    methods = _methods(kind, name)
    settings = to_data(recipe.config)
    used = _sections(methods)
    return {
        "version": recipe.version,
        "settings": settings if used is None else {key: settings[key] for key in sorted(used) if key in settings},
        "code": code_of(methods, _package(kind)),
    }


def _methods(kind: type[Recipe], name: str) -> list[Any]:
    """A method as every class of the recipe defines it (they may call each other), and the methods it calls on self."""
    found: dict[str, Any] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        for owner in kind.__mro__:
            method = vars(owner).get(current)
            label = f"{owner.__qualname__}.{current}"
            if owner in (object, Recipe) or not isinstance(method, types.FunctionType) or label in found:
                continue
            found[label] = method
            waiting += _called_on_self(method)
    return list(found.values())


def code_of(things: Iterable[Any], package: str) -> dict[str, str]:
    """Qualified name to source hash, of these functions and classes and whatever of `package` they use."""
    found: dict[str, str] = {}
    waiting = list(things)
    while waiting:
        thing = waiting.pop()
        name = _name(thing)
        if name in found:
            continue
        tree = _tree(thing)
        if tree is None:  # typed into a notebook or built on the fly: the declared version must do
            found[name] = ""
            continue
        constants, used = _used(thing, tree, package)
        found[name] = key_of([ast.unparse(tree), constants])
        waiting += used
    return dict(sorted(found.items()))


def _name(thing: Any) -> str:
    """`module:name`; a recipe's file by its own name, since its folder must not count."""
    module = re.sub(r"^clew_recipe_(.*)_[0-9a-f]{8}$", r"\1", thing.__module__)
    return f"{module}:{thing.__qualname__}"


def _package(kind: type) -> str:
    """What counts as the recipe's own code: its package, or for a single file its folder (`''` prefix by file)."""
    module = kind.__module__
    return module.rpartition(".")[0] or module


def _belongs(module: str | None, package: str) -> bool:
    if not module:
        return False
    inside = module == package or module.startswith(f"{package}.")
    return (
        inside or module.startswith(_WITHIN_CLEW) or module.startswith("clew_recipe_") or _is_sibling(module, package)
    )


@cache
def _is_sibling(module: str, package: str) -> bool:
    """Whether a top-level module lies in the folder of a recipe that is a single file."""
    if not package.startswith("clew_recipe_") or "." in module:
        return False
    here, there = (getattr(sys.modules.get(name), "__file__", None) for name in (package, module))
    return bool(here and there and Path(here).parent == Path(there).parent)


@cache
def _tree(thing: Any) -> ast.AST | None:
    """The syntax of a function or class without docstrings."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            kept = [item for item in node.body if not _is_text(item)]
            node.body = kept or [ast.Pass()]
    return tree


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _used(thing: Any, tree: ast.AST, package: str) -> tuple[Parts, list[Any]]:
    """The constants a piece of code names, and the functions and classes of the package it names."""
    space = vars(inspect.getmodule(thing)) if inspect.getmodule(thing) else {}
    constants: Parts = {}
    used: list[Any] = []
    for name, value in _named(tree, space):
        plain, inside = _plain(value, package)
        used += inside
        if plain is not None:
            constants[name] = plain
    if isinstance(thing, type):
        used += [base for base in thing.__bases__ if _belongs(base.__module__, package)]
    return constants, used


def _plain(value: Any, package: str) -> tuple[Any, list[Any]]:
    """A global's value as JSON (None where it does not count), and the code of the package it holds."""
    if isinstance(value, (types.FunctionType, type)):
        own = _belongs(getattr(value, "__module__", None), package)
        return _name(value), [value] if own else []
    if isinstance(value, Section):
        return to_data(value), []
    if isinstance(value, (bool, int, float, str, bytes, complex)):
        return repr(value), []
    if isinstance(value, dict):
        value = [item for pair in value.items() for item in pair]
    if isinstance(value, (tuple, list, set, frozenset)):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        found = [_plain(item, package) for item in items]
        return [plain for plain, _ in found], [code for _, inside in found for code in inside]
    return None, []


def _named(tree: ast.AST, space: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Every global that code names: `x`, or `module.x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = space.get(node.value.id)
            if isinstance(owner, types.ModuleType) and hasattr(owner, node.attr):
                yield f"{owner.__name__}.{node.attr}", getattr(owner, node.attr)
        elif isinstance(node, ast.Name) and node.id in space and not hasattr(builtins, node.id):
            yield node.id, space[node.id]


def _called_on_self(method: Callable[..., Any]) -> list[str]:
    tree = _tree(method)
    nodes = ast.walk(tree) if tree else ()
    return [node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_self(node.value)]


def _sections(methods: Iterable[Callable[..., Any]]) -> set[str] | None:
    """The sections of `self.config` that methods mention; None where they use it as a whole or cannot be read."""
    used: set[str] = set()
    for method in methods:
        tree = _tree(method)
        if tree is None:
            return None
        whole = 0
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "config" and _is_self(node.value):
                whole += 1
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                inner = node.value
                if inner.attr == "config" and _is_self(inner.value):
                    used.add(node.attr)
                    whole -= 1
        if whole:
            return None
    return used


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """What changed between two descriptions, as lines for people."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for name in sorted(old.keys() | new.keys()):
            lines += differences(old.get(name, "nothing"), new.get(name, "nothing"), f"{path}.{name}" if path else name)
        return lines
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line for i, pair in enumerate(zip(old, new, strict=True)) for line in differences(*pair, f"{path}[{i}]")
        ]
    if old == new:
        return []
    if "code." in path:
        name = path.rpartition("code.")[2].rpartition(":")[2]
        return [f"code of {name} changed"]
    return [f"{path}: {_short(old)} became {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
