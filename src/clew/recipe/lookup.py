"""Finding recipes: by name, by file, or from entry points of installed packages."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from clew.core import entry_points
from clew.core.private_modules import SAVED_CODE, load_private
from clew.errors import ClewError, RecipeError, nearest
from clew.recipe.contract import Recipe

ENTRY_POINTS = "clew.recipes"
FILE_MODULE = "clew_recipe_"
"""How the name of a module begins that was loaded from a recipe's file."""
_DIGEST = "__clew_digest__"
TYPED_IN = "other processes cannot load it: save it in a file, or use one worker"


def find(name: str, *, base: Path | None = None) -> type[Recipe]:
    """Find a recipe class by its name or file.

    Args:
        name: The name of a shipped or installed recipe, a Python file, `file.py:Class`, or `module:Class`.
        base: The folder to which relative files belong. Default: the current folder.

    Returns:
        The class, with its `location` set.

    Raises:
        RecipeError: There is no such recipe, or its code does not load.

    Example:
        >>> from clew.recipe import find
        >>> find("tracking").location
        'tracking'
    """
    if re.search(r"\.py(:\w+)?$", name) or "/" in name:
        file, _, class_name = name.partition(".py:")
        return _find_in_file((base or Path.cwd()) / Path(f"{file}.py" if class_name else name).expanduser(), class_name)
    table = shipped()
    if re.fullmatch(r"[\w.]+:[\w.]+", name):
        table[name] = name
    elif name not in table:
        table = available()  # reads the metadata of every installed package, which is slow
    if name not in table:
        raise RecipeError(f"no recipe '{name}'{nearest(name, table)} (or give a file: my_recipe.py)")
    module, _, attribute = table[name].partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise RecipeError(f"recipe '{name}' ({table[name]}) does not load: {error}") from error
    return _check_class(kind, table[name], name)


def resolve(recipe: str | Recipe | type[Recipe]) -> Recipe:
    """Return a recipe object for a name or file, a class, or an object."""
    if isinstance(recipe, str):
        return find(recipe)()
    instance = recipe() if isinstance(recipe, type) else recipe
    kind = type(instance)
    if "location" not in vars(kind):
        kind.location = _location(kind)
    return instance


def _location(kind: type[Recipe]) -> str:
    """The location of an imported class: a shipped name, a script or `module:Class`; '' if it cannot be loaded."""
    for name, target in shipped().items():
        module, _, attribute = target.partition(":")
        if kind is getattr(sys.modules.get(module), attribute, None):
            return name
    script = getattr(sys.modules["__main__"], "__file__", None)
    if kind.__module__ == "__main__" and script and Path(script).is_file():
        return str(Path(script).resolve())
    if kind.__module__ == "__main__" or kind is not getattr(sys.modules.get(kind.__module__), kind.__qualname__, None):
        return ""
    return f"{kind.__module__}:{kind.__qualname__}"


def rebuild(location: str, config: dict[str, Any]) -> Recipe:
    """A recipe from its location and its settings: what a pickled recipe is loaded with."""
    kind = find(location)
    return kind(kind.Config.model_validate(config))


def shipped() -> dict[str, str]:
    """The recipes of clew: `module:Class` by name."""
    return entry_points.shipped_entry_points(ENTRY_POINTS)


def available() -> dict[str, str]:
    """All installed recipes, with those of other packages: `module:Class` by name."""
    return entry_points.installed_entry_points(ENTRY_POINTS)


def load_code(reference: str) -> Any:
    """Load the object that `file.py:name` or `module:name` refers to.

    Raises:
        RecipeError: There is no such object, or its code does not load.
    """
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise RecipeError(f"'{reference}' does not name code; write file.py:name or module:name")
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise RecipeError(f"no file {where}")
        module = _load_file(Path(where).resolve())
    else:
        try:
            module = importlib.import_module(where)
        except ImportError as error:
            raise RecipeError(f"'{reference}' does not load: {error}") from error
    if not hasattr(module, name):
        raise RecipeError(f"{where} has no '{name}'{nearest(name, vars(module))}")
    return getattr(module, name)


def _load_file(path: Path) -> Any:
    """Return a file as a module. It is executed once, and again if its content has changed."""
    root = next((folder for folder in path.parents if (folder / SAVED_CODE).is_file()), None)
    if root is not None:
        version = (root / SAVED_CODE).read_text()
        return _with_location(path, lambda: load_private(root, path, version))
    name = f"{FILE_MODULE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    module = sys.modules.get(name)
    if module is None or vars(module).get(_DIGEST) != digest:
        module = _with_location(path, lambda: _execute(path, name))
        vars(module)[_DIGEST] = digest
    return module


def _find_in_file(path: Path, class_name: str) -> type[Recipe]:
    if not path.is_file():
        raise RecipeError(f"no recipe file {path}")
    path = path.resolve()
    module = _load_file(path)
    if class_name:
        location = f"{path}:{class_name}"
        return _check_class(getattr(module, class_name, None), location, location)
    name = module.__name__
    classes = {
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Recipe) and item.__module__ == name
    }
    if len(classes) != 1:
        names = ", ".join(sorted(item.__name__ for item in classes)) or "none"
        raise RecipeError(f"{path}: expected one subclass of clew.Recipe, found {names}")
    return _check_class(classes.pop(), str(path), str(path))


def _execute(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # it may import files of its folder, as a script may
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _with_location(path: Path, load: Callable[[], ModuleType]) -> ModuleType:
    """Load a file. An exception of its code becomes an error with the file and the line."""
    try:
        return load()
    except (Exception, SystemExit) as error:
        if isinstance(error, ClewError):
            raise
        where = _error_location(error, path)
        raise RecipeError(f"{where}: {type(error).__name__}: {getattr(error, 'msg', error)}") from error


def _error_location(error: BaseException, path: Path) -> str:
    """File and line of the error in the recipe, or of a syntax error in a module that it imports."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}:{error.lineno}"
    frame, location = error.__traceback__, str(path)
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            location = f"{path}:{frame.tb_lineno}"
        frame = frame.tb_next
    return location


def _check_class(kind: Any, where: str, location: str) -> type[Recipe]:
    if not (isinstance(kind, type) and issubclass(kind, Recipe)):
        raise RecipeError(f"{where} is not a subclass of clew.Recipe")
    trained = "model" if kind.estimator is Recipe.estimator else "estimator"
    for required in ("prepare", trained):
        if getattr(kind, required) is getattr(Recipe, required):
            raise RecipeError(f"{where}: recipe {kind.__name__} must define {required}()")
    kind.location = location
    return kind
