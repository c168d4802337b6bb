"""The Python files that a script or recipe needs: itself, and the modules of its folder that it imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from clew.errors import RecipeError


def local_sources(entry: Path, root: Path | None = None) -> dict[str, Path]:
    """Return a Python file and all modules in its folder that it imports, also indirectly and inside functions.

    The imports are read from the source, nothing is executed. Installed packages are not included.

    Args:
        entry: The file of a script or recipe.
        root: The folder from which modules are imported, for a module of a package. Default: the folder of `entry`.

    Returns:
        The files by their paths relative to the root, with `entry` first.

    Raises:
        RecipeError: A file cannot be read or is not valid Python.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("mine.py").write_text("import numpy, layers")
        >>> _ = Path("layers.py").write_text("x = 1")
        >>> list(local_sources(Path("mine.py")))
        ['mine.py', 'layers.py']
    """
    root = root or entry.absolute().parent
    sources: dict[str, Path] = {}
    waiting = [entry.absolute()]
    while waiting:
        path = waiting.pop(0)
        name = path.relative_to(root).as_posix()
        if name not in sources:
            sources[name] = path
            waiting += _imported_files(path, root)
    return sources


def _imported_files(path: Path, root: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise RecipeError(f"{path}{line}: not valid Python ({error.args[0]})") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(root, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if node.level else root
            if base.is_relative_to(root):
                parts = node.module.split(".") if node.module else []
                for alias in node.names:
                    yield from _module_files(base, [*parts, alias.name])


def _module_files(folder: Path, parts: list[str]) -> Iterator[Path]:
    """Yield the files that an import of `parts` executes, as far as they are in this folder."""
    for part in parts:
        module, package = folder / f"{part}.py", folder / part
        if (package / "__init__.py").is_file():
            yield package / "__init__.py"
        elif module.is_file():
            yield module
            return
        elif not package.is_dir():
            return
        folder = package
