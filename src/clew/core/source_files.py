"""The Python files that a script or recipe needs: itself, and the modules of its folder that it imports."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator
from pathlib import Path

from clew.errors import RecipeError, nearest


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


def check_name_in_source(path: Path, name: str) -> None:
    """Check that a Python file defines a name at its top level. The file is read, not executed.

    Args:
        path: The file.
        name: A function, class, variable or imported name; `Net.build` is checked as `Net`.

    Raises:
        RecipeError: The file does not define it, cannot be read or is not valid Python.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("net.py").write_text("def build(): ...")
        >>> check_name_in_source(Path("net.py"), "build")
    """
    imports = [node for node in ast.walk(_parse(path)) if isinstance(node, ast.ImportFrom)]
    if any(alias.name == "*" for node in imports for alias in node.names):
        return  # what it brings is known only when it runs
    symbols = symtable.symtable(path.read_text(encoding="utf-8"), str(path), "exec").get_symbols()
    names = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported() or each.is_namespace()}
    if name.partition(".")[0] not in names and "__getattr__" not in names:
        raise RecipeError(f"{path} has no '{name}'{nearest(name, names)}")


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror})") from error
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise RecipeError(f"{path}{line}: not valid Python ({error.args[0]})") from error


def _imported_files(path: Path, root: Path) -> Iterator[Path]:
    for node in ast.walk(_parse(path)):
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
