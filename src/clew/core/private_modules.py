"""Modules from a folder of source files, imported under private names.

Two folders may hold two versions of the same module. Each folder is a package of its own, and `import network` in one
of its files leads to the `network.py` of that folder. So both versions can be used in one process.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

SAVED_CODE = "clew-code.json"
"""The file that makes a folder a folder of saved source files."""
PREFIX = "clew_run_"
"""Beginning of the names of the packages, followed by eight hexadecimal digits."""


def load_private(root: Path, file: Path, version: str) -> ModuleType:
    """Import a file of a folder under a private name. It is executed once for each version.

    Args:
        root: The folder with the source files. Its files are never changed.
        file: The file to import.
        version: Identifies the content of the folder.

    Raises:
        Exception: any exception of the file.
    """
    package = PREFIX + hashlib.sha256(f"{root} {version}".encode()).hexdigest()[:8]
    if package not in sys.modules:
        module = ModuleType(package)
        module.__path__ = [str(root)]
        sys.modules[package] = module
        sys.meta_path.insert(0, _Finder(package, root))
    parts = file.relative_to(root).with_suffix("").parts
    return importlib.import_module(".".join((package, *parts)))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of one private package."""

    def __init__(self, package: str, root: Path) -> None:
        self._package, self._root = package, root
        self._builtins = {**vars(builtins), "__import__": self._import}

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{self._package}."):
            return None
        place = self._root.joinpath(*name.split(".")[1:])
        if (place / "__init__.py").is_file():
            return importlib.util.spec_from_file_location(
                name,
                place / "__init__.py",
                loader=_Loader(name, str(place / "__init__.py"), self._builtins),
                submodule_search_locations=[str(place)],
            )
        if place.with_suffix(".py").is_file():
            file = str(place.with_suffix(".py"))
            return importlib.util.spec_from_file_location(name, file, loader=_Loader(name, file, self._builtins))
        if place.is_dir():
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        return None

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        """`__import__` of the modules of this package: names of its files lead to its files."""
        if level or not self._has(name):
            return builtins.__import__(name, globals, locals, fromlist, level)
        private = f"{self._package}.{name}"
        if fromlist:
            return builtins.__import__(private, globals, locals, fromlist, 0)
        importlib.import_module(private)
        return sys.modules[f"{self._package}.{name.partition('.')[0]}"]

    def _has(self, name: str) -> bool:
        if name.partition(".")[0] in sys.stdlib_module_names:
            return False
        place = self._root.joinpath(*name.split("."))
        return place.with_suffix(".py").is_file() or place.is_dir()


class _Loader(importlib.machinery.SourceFileLoader):
    """Executes the text of a file with another `__import__`. Byte code is neither read nor written."""

    def __init__(self, name: str, path: str, builtins_of_module: dict[str, Any]) -> None:
        super().__init__(name, path)
        self._builtins_of_module = builtins_of_module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self._builtins_of_module
        super().exec_module(module)

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)
