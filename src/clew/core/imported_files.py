"""The source files that a Python file imports from its own folder, found without running anything."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path


def imported_files(start: Path, root: Path) -> dict[str, Path]:
    """Return a source file and all files under `root` that it imports, directly or through others.

    Args:
        start: The Python file to begin with.
        root: The folder from which modules are imported: that of a script, or that of a package.

    Returns:
        Files by their path relative to `root`, sorted.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "network.py").write_text("import math")
        >>> _ = (folder / "recipe.py").write_text("import clew, network")
        >>> list(imported_files(folder / "recipe.py", folder))
        ['network.py', 'recipe.py']
    """
    files: dict[str, Path] = {}
    waiting = [start]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(root).as_posix()
        if name in files:
            continue
        files[name] = path
        waiting += _imports(path, root, path.stat().st_mtime_ns)
    return dict(sorted(files.items()))


@lru_cache(maxsize=1024)
def _imports(path: Path, root: Path, changed: int) -> tuple[Path, ...]:
    """Return the files under `root` that a file imports. `changed` identifies its version."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ()
    files: list[Path] = []
    for module, names in _imported_names(tree, path, root):
        if not _is_local(module.partition(".")[0], root):
            continue
        for candidate in (module, *(f"{module}.{name}" for name in names)):
            files += _module_files(candidate, root)
    return tuple(dict.fromkeys(files))


def _imported_names(tree: ast.AST, path: Path, root: Path) -> Iterator[tuple[str, list[str]]]:
    package = path.parent.relative_to(root).parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = [alias.name for alias in node.names]
            if module:
                yield module, names
            else:  # `from . import network` in a file of the root folder
                yield from ((name, []) for name in names)


def _module_files(module: str, root: Path) -> list[Path]:
    """Return the file of a module and the `__init__.py` of the packages around it, as far as they exist."""
    parts = module.split(".")
    packages = [root.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1)]
    return [file for file in (*packages, root.joinpath(*parts).with_suffix(".py")) if file.is_file()]


def _is_local(name: str, root: Path) -> bool:
    """Whether a top-level name is imported from `root`: names of installed packages come first."""
    if not name or name in sys.stdlib_module_names or name == "clew":
        return False
    if not ((root / f"{name}.py").is_file() or (root / name).is_dir()):
        return False
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return True
    if spec is None:
        return True
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    return any(place and Path(place).resolve().is_relative_to(root.resolve()) for place in places)
