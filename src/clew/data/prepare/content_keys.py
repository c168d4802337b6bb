"""Content keys: a description of everything that the result of a stage depends on. Equal descriptions mean equal
results.

Code counts by what it does: the source of a method, and of everything it uses in the package of the recipe and in
clew's readers, transforms and expressions, without comments, docstrings and layout. Settings count if they are used:
the sections of `self.config` that the methods mention.
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
_WITHIN_CLEW = ("clew.recipes.", "clew.data.readers", "clew.data.transforms", "clew.data.expression")


def key_of(parts: Any) -> str:
    """Return a hash of plain JSON data. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, allow_nan=False).encode()).hexdigest()


def stage_parts(recipe: Recipe, transforms: Sequence[Transform], readers: Iterable[Reader] = ()) -> dict[str, Parts]:
    """Return what reading, all transforms together, and `Recipe.prepare` depend on.

    Args:
        recipe: The recipe.
        transforms: Its transforms.
        readers: The readers that `Recipe.read` uses.
    """
    used = {type(reader).__qualname__: reader for reader in readers}
    each = [transform_parts(recipe, transform) for transform in transforms]
    return {
        "read": {
            **_method_parts(recipe, "read"),
            "readers": {name: to_data(reader) for name, reader in sorted(used.items())},
            "readers_code": code_of([type(reader) for reader in used.values()], "clew.data.readers"),
        },
        "transforms": {
            "version": recipe.version,
            "settings": [parts["settings"] for parts in each],
            "code": dict(sorted(pair for parts in each for pair in parts["code"].items())),
        },
        "prepare": _method_parts(recipe, "prepare"),
    }


def transform_parts(recipe: Recipe, transform: Transform) -> Parts:
    """Return what a transform depends on: its own settings and code, not those of other transforms."""
    return {"settings": transform_settings(transform), "code": code_of([type(transform)], _package(type(recipe)))}


def transform_settings(transform: Transform) -> Parts:
    """Return the settings of a transform, fitted numbers included."""
    return {"kind": type(transform).__qualname__, **to_data(transform)}


def preparation_parts(recipe: Recipe) -> Parts:
    """Return the code of a recipe and the transforms that decide about its samples, to be compared later.

    The code of clew's readers, transforms and expressions is left out: a new version of clew is no change of a recipe.
    """
    parts = stage_parts(recipe, recipe.transforms())
    code = {
        name: digest
        for stage in ("read", "transforms", "prepare")
        for name, digest in parts[stage]["code"].items()
        if not name.startswith("clew.data.")
    }
    plain: Parts = json.loads(
        json.dumps({"version": recipe.version, "transforms": parts["transforms"]["settings"], "code": code})
    )
    return plain


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
    """Return a method as each class of the recipe defines it, and the methods that it calls on self."""
    methods: dict[str, Any] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        for owner in kind.__mro__:
            method = vars(owner).get(current)
            label = f"{owner.__qualname__}.{current}"
            if owner in (object, Recipe) or not isinstance(method, types.FunctionType) or label in methods:
                continue
            methods[label] = method
            waiting += _called_on_self(method)
    return list(methods.values())


def code_of(codes: Iterable[Any], package: str) -> dict[str, str]:
    """Return the hash of the source of functions and classes, and of everything in `package` that they use, by
    qualified
    name."""
    hashes: dict[str, str] = {}
    waiting = list(codes)
    while waiting:
        code = waiting.pop()
        name = _name(code)
        if name in hashes:
            continue
        if _tree(code) is None:  # typed into a notebook or built on the fly: the declared version must do
            hashes[name] = ""
            continue
        constants, used = _used(code, package)
        hashes[name] = key_of([_text(code), constants])
        waiting += used
    return dict(sorted(hashes.items()))


def _name(code: Any) -> str:
    """Return `module:name`. A recipe that is a file counts by its file name only, because its folder must not
    matter."""
    module = re.sub(r"^clew_recipe_(.*)_[0-9a-f]{8}$", r"\1", code.__module__)
    module = re.sub(r"^clew_run_[0-9a-f]{8}\.", "", module)  # the saved code of a run
    return f"{module}:{code.__qualname__}"


def _package(kind: type) -> str:
    """Return the package of a recipe, or the module for a recipe that is a single file."""
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
    """Return whether a top-level module is in the same folder as a recipe that is a single file."""
    if not package.startswith("clew_recipe_") or "." in module:
        return False
    package_file, module_file = (getattr(sys.modules.get(name), "__file__", None) for name in (package, module))
    return bool(package_file and module_file and Path(package_file).parent == Path(module_file).parent)


@cache
def _tree(code: Any) -> ast.AST | None:
    """Return the syntax tree of a function or class without docstrings."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            statements = [item for item in node.body if not _is_text(item)]
            node.body = statements or [ast.Pass()]
    return tree


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _used(code: Any, package: str) -> tuple[Parts, list[Any]]:
    """Return the constants that a piece of code uses, and the functions and classes of the package that it uses."""
    space = vars(inspect.getmodule(code)) if inspect.getmodule(code) else {}
    constants: Parts = {}
    used: list[Any] = []
    for name, value in _named(code, space):
        plain, inside = _plain(value, package)
        used += inside
        if plain is not None:
            constants[name] = plain
    if isinstance(code, type):
        used += [base for base in code.__bases__ if _belongs(base.__module__, package)]
    return constants, used


def _plain(value: Any, package: str) -> tuple[Any, list[Any]]:
    """Return the value of a global as JSON (None if it does not count), and the code of the package in it."""
    if isinstance(value, (types.FunctionType, type)):
        belongs = _belongs(getattr(value, "__module__", None), package)
        return _name(value), [value] if belongs else []
    if isinstance(value, Section):
        return to_data(value), []
    if isinstance(value, (bool, int, float, str, bytes, complex)):
        return repr(value), []
    if isinstance(value, dict):
        value = [item for pair in value.items() for item in pair]
    if isinstance(value, (tuple, list, set, frozenset)):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        plain_items = [_plain(item, package) for item in items]
        return [plain for plain, _ in plain_items], [code for _, inside in plain_items for code in inside]
    return None, []


def _named(code: Any, space: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Yield every global that a piece of code uses: `x`, or `module.x`. Its value may have changed since the last
    call."""
    for name, attribute in _names(code):
        if attribute:
            owner = space.get(name)
            if isinstance(owner, types.ModuleType) and hasattr(owner, attribute):
                yield f"{owner.__name__}.{attribute}", getattr(owner, attribute)
        elif name in space and not hasattr(builtins, name):
            yield name, space[name]


@cache
def _text(code: Any) -> str:
    """Return the source of a function or class without comments, docstrings and layout."""
    tree = _tree(code)
    return ast.unparse(tree) if tree else ""


@cache
def _names(code: Any) -> tuple[tuple[str, str], ...]:
    """Return the names that a piece of code mentions: `(x, "")` for `x`, `(module, x)` for `module.x`."""
    tree = _tree(code)
    names: dict[tuple[str, str], None] = {}
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names[node.value.id, node.attr] = None
        elif isinstance(node, ast.Name):
            names[node.id, ""] = None
    return tuple(names)


def _called_on_self(method: Callable[..., Any]) -> list[str]:
    tree = _tree(method)
    nodes = ast.walk(tree) if tree else ()
    return [node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_self(node.value)]


def _sections(methods: Iterable[Callable[..., Any]]) -> set[str] | None:
    """Return the sections of `self.config` that methods mention. None if they use it as a whole, or cannot be
    parsed."""
    used: set[str] = set()
    for method in methods:
        tree = _tree(method)
        if tree is None:
            return None
        bare_uses = 0
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "config" and _is_self(node.value):
                bare_uses += 1
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                inner = node.value
                if inner.attr == "config" and _is_self(inner.value):
                    used.add(node.attr)
                    bare_uses -= 1
        if bare_uses:
            return None
    return used


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return what changed between two descriptions, as lines for people."""
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
