"""Python files as modules: recipes, models and losses that users name by their file."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from clew.core.private_modules import load_private
from clew.errors import ClewError, RecipeError, nearest

SAVED_CODE = "clew-code.json"
"""The file that makes a folder a folder of saved source code. Its files are imported under private names."""
_DIGEST = "__clew_digest__"


def load_code(place: str) -> Any:
    """Return the object that `file.py:name` or `module:name` names.

    Raises:
        RecipeError: there is no such object, or its code cannot be loaded.
    """
    where, _, name = place.rpartition(":")
    if not where or not name:
        raise RecipeError(f"'{place}' is no place of code; write file.py:name or module:name")
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise RecipeError(f"no file {where}")
        module = load_file(Path(where).resolve())
    else:
        try:
            module = importlib.import_module(where)
        except ImportError as error:
            raise RecipeError(f"'{place}' does not load: {error}") from error
    if not hasattr(module, name):
        raise RecipeError(f"{where} has no '{name}'{nearest(name, vars(module))}")
    return getattr(module, name)


def load_file(path: Path) -> ModuleType:
    """Return a Python file as a module. It is executed once, and again if its content has changed.

    Args:
        path: The file, as an absolute path.

    Raises:
        RecipeError: its code cannot be loaded. The message has the file and the line.
    """
    root = next((folder for folder in path.parents if (folder / SAVED_CODE).is_file()), None)
    if root is not None:
        with_version = root, path, (root / SAVED_CODE).read_text()
        return _with_place(path, lambda: load_private(*with_version))
    name = f"clew_recipe_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    module = sys.modules.get(name)
    if module is not None and vars(module).get(_DIGEST) == digest:
        return module
    module = _with_place(path, lambda: _execute(path, name))
    vars(module)[_DIGEST] = digest
    return module


def _execute(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # its network lies beside it, as for a script
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _with_place(path: Path, load: Any) -> ModuleType:
    """Call `load`. An error of the file becomes an error with the file and the line."""
    try:
        module: ModuleType = load()
    except (Exception, SystemExit) as error:
        if isinstance(error, ClewError):
            raise
        where = _place_of(error, path)
        raise RecipeError(f"{where}: {type(error).__name__}: {getattr(error, 'msg', error)}") from error
    return module


def _place_of(error: BaseException, path: Path) -> str:
    """File and line: of the recipe, or of the module it imports where the syntax is wrong there."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}:{error.lineno}"
    frame, place = error.__traceback__, str(path)
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            place = f"{path}:{frame.tb_lineno}"
        frame = frame.tb_next
    return place
